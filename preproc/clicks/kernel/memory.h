// SPDX-License-Identifier: Apache-2.0
// Memory that is returned to the system immediately, and complete file writes.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace clicks {

inline std::runtime_error system_error(const std::string& what) {
  return std::runtime_error(what + ": " + std::strerror(errno));
}

// Zeroed pages from the operating system. malloc would keep freed tables in its arenas, but the
// memory limit counts them as free.
template <typename T>
class Pages {
 public:
  enum Touch { kNow, kOnUse };

  Pages() = default;
  // kNow maps the memory immediately. Tables are read before they are written, so each page would
  // otherwise be mapped twice, which interrupts all threads.
  explicit Pages(size_t count, Touch touch = kNow) : count_(count) {
    if (count == 0) return;
    void* data = allocate(bytes());
    data_ = static_cast<T*>(data);
#ifdef MADV_HUGEPAGE
    // Random access to large tables is limited by TLB misses; huge pages would waste memory in
    // small ones.
    if (bytes() >= (size_t{8} << 20)) madvise(data_, bytes(), MADV_HUGEPAGE);
#endif
    if (touch == kNow) {
      volatile char* page = static_cast<char*>(data);
      for (size_t i = 0; i < bytes(); i += 4096) page[i] = 0;
    }
  }
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    Pages moved(std::move(other));
    swap(moved);
    return *this;
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (data_ != nullptr) release(data_, bytes());
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
#ifdef __SANITIZE_ADDRESS__
  // AddressSanitizer checks the bounds of malloc's blocks, not those of mappings.
  static void* allocate(size_t size) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, size) != 0) throw std::bad_alloc();
    return std::memset(data, 0, size);
  }
  static void release(void* data, size_t) { std::free(data); }
#else
  static void* allocate(size_t size) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (data == MAP_FAILED)
      throw system_error("cannot allocate " + std::to_string(size) + " bytes");
    return data;
  }
  static void release(void* data, size_t size) { munmap(data, size); }
#endif

  void swap(Pages& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  T* data_ = nullptr;
  size_t count_ = 0;
};

inline void write_all(int fd, const void* data, size_t size) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, p, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("write failed");
    p += written;
    size -= static_cast<size_t>(written);
  }
}

// Returns where the next write to a file goes.
inline uint64_t position(int fd) {
  const off_t at = lseek(fd, 0, SEEK_CUR);
  if (at < 0) throw system_error("seek failed");
  return static_cast<uint64_t>(at);
}

inline void pwrite_all(int fd, const void* data, size_t size, uint64_t offset) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = pwrite(fd, p, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("write failed");
    p += written;
    offset += static_cast<uint64_t>(written);
    size -= static_cast<size_t>(written);
  }
}

// Starts writing a range to the disk, so that the fsync at the end waits less.
inline void start_writeback(int fd, uint64_t offset, uint64_t size) {
#ifdef SYNC_FILE_RANGE_WRITE
  sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(size), SYNC_FILE_RANGE_WRITE);
#else
  (void)fd, (void)offset, (void)size;
#endif
}

}  // namespace clicks
