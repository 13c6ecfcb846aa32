// SPDX-License-Identifier: Apache-2.0
// Keys of categories that are texts or 64-bit integers: hashes find them, whole keys decide.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory.h"
#include "text_hash.h"

namespace clicks {

// What the categories of a column are: numbers of 32 bits, 64-bit integers or texts.
enum class KeyType : uint32_t { kNarrow, kInteger, kText };

// The bytes of a text, or the eight of an integer.
struct WideKey {
  uint64_t hash;
  const uint8_t* bytes;
  uint32_t length;

  static WideKey of(const uint8_t* bytes, uint32_t length) {
    return {TextHash::of(bytes, length), bytes, length};
  }
  bool is(const uint8_t* other, uint64_t other_length) const {
    return length == other_length && std::memcmp(bytes, other, length) == 0;
  }
};

// Shorter texts come first, then those of smaller bytes.
inline bool is_text_before(const uint8_t* a, uint32_t a_length, const uint8_t* b,
                           uint32_t b_length) {
  return a_length != b_length ? a_length < b_length : std::memcmp(a, b, a_length) < 0;
}

// The wide keys of a column in id order, in a dictionary's files: one after the other.
class WideKeys {
 public:
  // ends: the end of each key; null if all have eight bytes.
  WideKeys(const uint8_t* bytes, uint64_t size, const uint8_t* ends)
      : bytes_(bytes), size_(size), ends_(ends) {}

  // Limited to the bytes, so that a damaged file gives other keys but no wild reads.
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

// Keeps copies of keys at addresses that stay.
class KeyArena {
 public:
  static constexpr size_t kChunkBytes = size_t{1} << 20;

  const uint8_t* copy(const uint8_t* bytes, uint32_t length) {
    if (chunks_.empty() || kChunkBytes - filled_ < length) {
      chunks_.emplace_back(kChunkBytes, Pages<uint8_t>::kOnUse);
      filled_ = 0;
    }
    uint8_t* const copied = chunks_.back().data() + filled_;
    std::memcpy(copied, bytes, length);
    filled_ += length;
    return copied;
  }
  size_t bytes() const { return chunks_.size() * kChunkBytes; }
  void clear() { chunks_.clear(); }

 private:
  std::vector<Pages<uint8_t>> chunks_;
  size_t filled_ = 0;
};

}  // namespace clicks
