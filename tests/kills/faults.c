// SPDX-License-Identifier: Apache-2.0
// Faults of a disk, of a limit and of the clock, preloaded into a program and what it starts.
//
// FAULT_COUNTS  file of 8 counters, one for each kind of call, that all processes share
// FAULT_OUTPUT  folder: only files in it are written
// FAULT_FILES   folder around it: only files in it are read and opened
// FAULT_KIND    number of the kind of fault; without it, calls are counted only
// FAULT_AT      number of the call at which it comes, from 1; of written bytes for a full disk
// FAULT_VALUE   error number; seconds by which the clock jumps; bytes or descriptors that are free

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { READ, WRITE, BYTES, FSYNC, RENAME, OPEN, CHANGE, CLOCK, KINDS };

// Faults that are no error of one call: limits that are set when a file is opened.
enum limit { MEMORY = KINDS, DESCRIPTORS };

static long* counts;
static int kind = -1;
static long at, value;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
  const char* file = getenv("FAULT_COUNTS");
  if (file == NULL) return;
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  void* shared = mmap(NULL, KINDS * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  syscall(SYS_close, fd);
  if (shared == MAP_FAILED) return;
  if (getenv("FAULT_KIND") != NULL) {
    kind = atoi(getenv("FAULT_KIND"));
    at = atol(getenv("FAULT_AT"));
    value = atol(getenv("FAULT_VALUE"));
  }
  counts = shared;
}

static int is_below(const char* path, const char* variable) {
  const char* folder = getenv(variable);
  const size_t length = folder == NULL ? 0 : strlen(folder);
  return length > 0 && strncmp(path, folder, length) == 0;
}

// Whether a path counts. It is relative to a folder of a descriptor, or without a name that itself.
static int counts_at(int folder, const char* name, const char* variable) {
  if (counts == NULL) return 0;
  if (name != NULL && name[0] == '/') return is_below(name, variable);
  char link[64], path[2 * PATH_MAX];
  if (folder == AT_FDCWD) {
    strcpy(link, "/proc/self/cwd");
  } else {
    snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
  }
  const ssize_t size = readlink(link, path, PATH_MAX - 1);
  if (size < 0) return 0;
  path[size] = 0;
  if (name != NULL) snprintf(path + size, PATH_MAX, "/%s", name);
  return is_below(path, variable);
}

static long count(enum kind of, long more) {
  return __atomic_add_fetch(&counts[of], more, __ATOMIC_RELAXED);
}

// Counts a call; returns whether the fault comes now.
static int is_due(enum kind of) { return count(of, 1) == at && kind == (int)of; }

// The same for a fault that lasts.
static int is_due_since(enum kind of) { return count(of, 1) >= at && kind == (int)of; }

static void set_limit(void) {
  if (kind == MEMORY) {
    long pages = 0;
    FILE* file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%ld", &pages) != 1) return;
    fclose(file);
    const rlim_t most = (rlim_t)(pages * sysconf(_SC_PAGESIZE) + value);
    setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
  } else {
    const int free_one = fcntl(0, F_DUPFD, 0);
    close(free_one);
    const rlim_t most = (rlim_t)(free_one + value);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){most, most});
  }
}

// Sets errno where a call must fail.
static int fails(int is_due_now) {
  if (is_due_now) errno = (int)value;
  return is_due_now;
}

static int read_fails(int fd) { return counts_at(fd, NULL, "FAULT_FILES") && fails(is_due(READ)); }

// Returns how many bytes of a write go through; -1 if it must fail.
static ssize_t allowed(int fd, size_t size) {
  if (size == 0 || !counts_at(fd, NULL, "FAULT_OUTPUT")) return (ssize_t)size;
  if (fails(is_due(WRITE))) return -1;
  const long sum = count(BYTES, (long)size);
  if (kind != BYTES || sum <= at) return (ssize_t)size;
  const long fitting = (long)size - (sum - at);
  if (fitting > 0) return fitting;
  errno = (int)value;
  return -1;
}

static int change_fails(int folder, const char* name) {
  return counts_at(folder, name, "FAULT_OUTPUT") && fails(is_due_since(CHANGE));
}

static int open_fails(int folder, const char* name, int flags) {
  if (!counts_at(folder, name, "FAULT_FILES")) return 0;
  const long number = count(OPEN, 1);
  if (number == at && kind >= KINDS) set_limit();
  if (fails(number == at && kind == OPEN)) return 1;
  return (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 && change_fails(folder, name);
}

static int rename_fails(int folder, const char* name) {
  if (counts_at(folder, name, "FAULT_OUTPUT") && fails(is_due(RENAME))) return 1;
  return change_fails(folder, name);
}

ssize_t read(int fd, void* data, size_t size) {
  return read_fails(fd) ? -1 : REAL(read)(fd, data, size);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return read_fails(fd) ? -1 : REAL(pread)(fd, data, size, offset);
}

ssize_t pread64(int fd, void* data, size_t size, off_t offset) {
  return pread(fd, data, size, offset);
}

ssize_t write(int fd, const void* data, size_t size) {
  const ssize_t most = allowed(fd, size);
  return most < 0 ? -1 : REAL(write)(fd, data, (size_t)most);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  const ssize_t most = allowed(fd, size);
  return most < 0 ? -1 : REAL(pwrite)(fd, data, (size_t)most, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}

ssize_t writev(int fd, const struct iovec* parts, int number) {
  size_t size = 0;
  for (int i = 0; i < number; ++i) size += parts[i].iov_len;
  const ssize_t most = allowed(fd, size);
  if (most < 0 || (size_t)most == size) return most < 0 ? -1 : REAL(writev)(fd, parts, number);
  return REAL(write)(fd, parts[0].iov_base,
                     (size_t)most < parts[0].iov_len ? (size_t)most : parts[0].iov_len);
}

ssize_t sendfile(int to, int from, off_t* offset, size_t size) {
  // Python asks for much more than the file has.
  struct stat status;
  const size_t whole = fstat(from, &status) == 0 ? (size_t)status.st_size : size;
  const ssize_t most = allowed(to, size < whole ? size : whole);
  return most < 0 ? -1 : REAL(sendfile)(to, from, offset, (size_t)most);
}

ssize_t sendfile64(int to, int from, off_t* offset, size_t size) {
  return sendfile(to, from, offset, size);
}

size_t fwrite(const void* data, size_t size, size_t number, FILE* file) {
  const ssize_t most = allowed(fileno(file), size * number);
  if (most >= 0 && (size_t)most == size * number) return REAL(fwrite)(data, size, number, file);
  errno = (int)value;
  return 0;
}

int fsync(int fd) {
  const int counted = counts_at(fd, NULL, "FAULT_OUTPUT");
  return counted && fails(is_due(FSYNC)) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd) { return fsync(fd); }

int rename(const char* from, const char* to) {
  return rename_fails(AT_FDCWD, to) ? -1 : REAL(rename)(from, to);
}

int renameat(int folder, const char* from, int other, const char* to) {
  return rename_fails(other, to) ? -1 : REAL(renameat)(folder, from, other, to);
}

int renameat2(int folder, const char* from, int other, const char* to, unsigned flags) {
  return rename_fails(other, to) ? -1 : REAL(renameat2)(folder, from, other, to, flags);
}

int mkdir(const char* path, mode_t mode) {
  return change_fails(AT_FDCWD, path) ? -1 : REAL(mkdir)(path, mode);
}

int mkdirat(int folder, const char* path, mode_t mode) {
  return change_fails(folder, path) ? -1 : REAL(mkdirat)(folder, path, mode);
}

int unlink(const char* path) { return change_fails(AT_FDCWD, path) ? -1 : REAL(unlink)(path); }

int unlinkat(int folder, const char* path, int flags) {
  return change_fails(folder, path) ? -1 : REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char* path) { return change_fails(AT_FDCWD, path) ? -1 : REAL(rmdir)(path); }

#define MODE(last)                                                        \
  ({                                                                      \
    va_list rest;                                                         \
    va_start(rest, last);                                                 \
    const mode_t given = (mode_t)va_arg(rest, unsigned);                  \
    va_end(rest);                                                         \
    (last & O_CREAT) != 0 || (last & O_TMPFILE) == O_TMPFILE ? given : 0; \
  })

int open(const char* path, int flags, ...) {
  return open_fails(AT_FDCWD, path, flags) ? -1 : REAL(open)(path, flags, MODE(flags));
}

int open64(const char* path, int flags, ...) {
  return open_fails(AT_FDCWD, path, flags) ? -1 : REAL(open64)(path, flags, MODE(flags));
}

int openat(int folder, const char* path, int flags, ...) {
  return open_fails(folder, path, flags) ? -1 : REAL(openat)(folder, path, flags, MODE(flags));
}

int openat64(int folder, const char* path, int flags, ...) {
  return open_fails(folder, path, flags) ? -1 : REAL(openat64)(folder, path, flags, MODE(flags));
}

static int flags_of(const char* mode) {
  return mode[0] == 'r' && strchr(mode, '+') == NULL ? O_RDONLY : O_RDWR | O_CREAT;
}

FILE* fopen(const char* path, const char* mode) {
  return open_fails(AT_FDCWD, path, flags_of(mode)) ? NULL : REAL(fopen)(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  return open_fails(AT_FDCWD, path, flags_of(mode)) ? NULL : REAL(fopen64)(path, mode);
}

static time_t ahead(void) { return counts != NULL && is_due_since(CLOCK) ? value : 0; }

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int done = (int)syscall(SYS_clock_gettime, clock, now);
  if (done == 0 && clock == CLOCK_REALTIME) now->tv_sec += ahead();
  return done;
}

int gettimeofday(struct timeval* now, void* zone) {
  const int done = (int)syscall(SYS_gettimeofday, now, zone);
  if (done == 0) now->tv_sec += ahead();
  return done;
}

time_t time(time_t* now) {
  struct timespec spec;
  clock_gettime(CLOCK_REALTIME, &spec);
  if (now != NULL) *now = spec.tv_sec;
  return spec.tv_sec;
}
