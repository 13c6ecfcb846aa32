// SPDX-License-Identifier: Apache-2.0
// Keys of categories that are texts or 64-bit integers: found by hash, then compared as a whole.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory.h"
#include "text_hash.h"

namespace clicks {

// Type of a column's categories: 32-bit numbers, 64-bit integers or texts.
enum class KeyType : uint32_t { kNarrow, kInteger, kText };

// The bytes of a text, or the eight bytes of an integer. In a table `value` is a count or an id; it
// is 0 in a free slot.
struct alignas(32) WideKey {
  static constexpr uint32_t kShort = 16;

  uint64_t hash;
  uint32_t length;
  uint32_t value;
  // A key of up to 16 bytes, padded with zeros; for a longer key, the first word is its address.
  uint64_t words[2];

  // The key may refer to the bytes, so they must stay in place.
  static WideKey of(const uint8_t* bytes, uint32_t length) {
    WideKey key{TextHash::of(bytes, length), length, 0, {0, 0}};
    if (length <= kShort) {
      std::memcpy(key.words, bytes, length);
    } else {
      key.point_to(bytes);
    }
    return key;
  }
  void point_to(const uint8_t* bytes) { words[0] = reinterpret_cast<uintptr_t>(bytes); }
  const uint8_t* data() const {
    return length <= kShort ? reinterpret_cast<const uint8_t*>(words)
                            : reinterpret_cast<const uint8_t*>(words[0]);
  }
  bool is(const WideKey& other) const {
    if (hash != other.hash || length != other.length) return false;
    if (length <= kShort) return words[0] == other.words[0] && words[1] == other.words[1];
    return std::memcmp(data(), other.data(), length) == 0;
  }
  bool is(const uint8_t* other, uint64_t other_length) const {
    return length == other_length && std::memcmp(data(), other, length) == 0;
  }

  // As a slot of a CountTable.
  bool is_free() const { return value == 0; }
  uint64_t order() const { return hash; }
  bool has_key_of(const WideKey& other) const { return is(other); }
  void add(const WideKey& other) { value += other.value; }
  inline bool operator<(const WideKey& other) const;
};

// Shorter texts come first, then those of smaller bytes.
inline bool is_text_before(const uint8_t* a, uint32_t a_length, const uint8_t* b,
                           uint32_t b_length) {
  return a_length != b_length ? a_length < b_length : std::memcmp(a, b, a_length) < 0;
}

bool WideKey::operator<(const WideKey& other) const {
  if (hash != other.hash) return hash < other.hash;
  return is_text_before(data(), length, other.data(), other.length);
}

// The wide keys of a column in id order, stored one after the other as in a dictionary's files.
class WideKeys {
 public:
  // ends: the end of each key; null if all have eight bytes.
  WideKeys(const uint8_t* bytes, uint64_t size, const uint8_t* ends)
      : bytes_(bytes), size_(size), ends_(ends) {}

  // Clamped to the bytes, so that a damaged file gives wrong keys but no wild reads.
  bool is(uint64_t number, const WideKey& key) const {
    const uint64_t begin = number == 0 ? 0 : end_of(number - 1), end = end_of(number);
    return begin <= end && end <= size_ && key.is(bytes_ + begin, end - begin);
  }
  WideKey at(uint64_t number) const {
    const uint64_t begin = number == 0 ? 0 : end_of(number - 1);
    return WideKey::of(bytes_ + begin, static_cast<uint32_t>(end_of(number) - begin));
  }

 private:
  uint64_t end_of(uint64_t number) const {
    if (ends_ == nullptr) return sizeof(int64_t) * (number + 1);
    uint64_t end;
    std::memcpy(&end, ends_ + sizeof(end) * number, sizeof(end));
    return end;
  }

  const uint8_t* bytes_;
  uint64_t size_;
  const uint8_t* ends_;
};

// Keeps copies of texts at stable addresses. Some bytes after each may be read.
class KeyArena {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;

  uint8_t* copy(const uint8_t* bytes, uint32_t length) {
    if (chunks_.empty() || kChunkBytes - filled_ < length) {
      chunks_.emplace_back(kChunkBytes + kReadable, Pages<uint8_t>::kOnUse);
      filled_ = 0;
    }
    uint8_t* const copied = chunks_.back().data() + filled_;
    std::memcpy(copied, bytes, length);
    filled_ += length;
    return copied;
  }
  size_t bytes() const { return chunks_.size() * (kChunkBytes + kReadable); }
  void clear() { chunks_.clear(); }

 private:
  static constexpr size_t kReadable = 64;

  std::vector<Pages<uint8_t>> chunks_;
  size_t filled_ = 0;
};

}  // namespace clicks
