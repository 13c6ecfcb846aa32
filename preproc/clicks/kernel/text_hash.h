// SPDX-License-Identifier: Apache-2.0
// Hashes of texts, and the check that bytes are text.

#pragma once

#include <cstdint>
#include <cstring>

#include "digits.h"

namespace clicks {

// XXH64 with seed 0 (Collet, xxHash specification), as in Python's xxhash.
class TextHash {
 public:
  static uint64_t of(const uint8_t* text, uint32_t size) {
    const uint8_t* const end = text + size;
    uint64_t hash = kPrimes[4];
    if (size >= 32) {
      uint64_t lanes[4] = {kPrimes[0] + kPrimes[1], kPrimes[1], 0, 0 - kPrimes[0]};
      for (; end - text >= 32; text += 32) {
        for (int i = 0; i < 4; ++i) lanes[i] = step(lanes[i], load<uint64_t>(text + 8 * i));
      }
      constexpr int kTurns[4] = {1, 7, 12, 18};
      hash = 0;
      for (int i = 0; i < 4; ++i) hash += turned(lanes[i], kTurns[i]);
      for (const uint64_t lane : lanes)
        hash = (hash ^ step(uint64_t{0}, lane)) * kPrimes[0] + kPrimes[3];
    }
    hash += size;
    for (; end - text >= 8; text += 8) {
      hash = after_word(hash, load<uint64_t>(text));
    }
    if (end - text >= 4) {
      hash = turned(hash ^ load<uint32_t>(text) * kPrimes[0], 23) * kPrimes[1] + kPrimes[2];
      text += 4;
    }
    for (; text < end; ++text) hash = turned(hash ^ *text * kPrimes[4], 11) * kPrimes[0];
    return finished(hash);
  }

  // Hashes of texts of up to 16 bytes, padded with zeros. Words: a vector of uint64_t, Numbers: one
  // of int64_t, which processors compare faster. any_size: bits of the sizes; a step for which no
  // text has the bytes is left out.
  template <typename Words, typename Numbers>
  static CLICKS_INLINE Words of_short(const Words& low, const Words& high, const Numbers& size,
                                      uint32_t any_size) {
    const Numbers left = size & 7;
    Words hash = kPrimes[4] + (Words)size;
    if (any_size >= 8) hash = size >= 8 ? after_word(hash, low) : hash;
    if (any_size >= 16) hash = size >= 16 ? after_word(hash, high) : hash;
    Words rest = size >= 8 ? high : low;
    if (any_size & 4) {
      const Words half = rest & 0xffffffff;
      hash = left >= 4 ? turned(hash ^ half * kPrimes[0], 23) * kPrimes[1] + kPrimes[2] : hash;
      rest = left >= 4 ? rest >> 32 : rest;
    }
    const Numbers bytes = left & 3;
    for (uint32_t i = 0; i < (any_size & 3); ++i, rest >>= 8) {
      const Words longer = turned(hash ^ (rest & 0xff) * kPrimes[4], 11) * kPrimes[0];
      hash = bytes > i ? longer : hash;
    }
    return finished(hash);
  }

 private:
  static constexpr uint64_t kPrimes[5] = {0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f,
                                          0x165667b19e3779f9, 0x85ebca77c2b2ae63,
                                          0x27d4eb2f165667c5};

  // Words are little-endian, like all processors that this is built for.
  template <typename Word>
  static uint64_t load(const uint8_t* text) {
    Word word;
    std::memcpy(&word, text, sizeof(word));
    return word;
  }
  // Word: uint64_t or a vector of it.
  template <typename Word>
  static CLICKS_INLINE Word turned(const Word& x, int bits) {
    return x << bits | x >> (64 - bits);
  }
  template <typename Word>
  static CLICKS_INLINE Word step(const Word& lane, const Word& word) {
    return turned(lane + word * kPrimes[1], 31) * kPrimes[0];
  }
  template <typename Word>
  static CLICKS_INLINE Word after_word(const Word& hash, const Word& word) {
    return turned(hash ^ step(Word{}, word), 27) * kPrimes[0] + kPrimes[3];
  }
  template <typename Word>
  static CLICKS_INLINE Word finished(Word hash) {
    hash = (hash ^ hash >> 33) * kPrimes[1];
    hash = (hash ^ hash >> 29) * kPrimes[2];
    return hash ^ hash >> 32;
  }
};

// Returns not 0 if a byte of a word is not printable ASCII. Word: uint64_t or a vector of it.
template <typename Word>
CLICKS_INLINE Word not_printable(const Word& word) {
  return (word | (word - repeat(0x20)) | ((word & repeat(0x7f)) + repeat(1))) & repeat(0x80);
}

// Whether bytes are UTF-8.
inline bool is_text(const uint8_t* text, uint32_t size) {
  const uint8_t* const end = text + size;
  while (text < end) {
    const uint8_t first = *text++;
    if (first < 0x80) continue;
    const int following = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || end - text < following) return false;
    uint32_t point = first & (0x3fu >> following);
    for (int i = 0; i < following; ++i, ++text) {
      if ((*text & 0xc0) != 0x80) return false;
      point = point << 6 | (*text & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (point < kLeast[following] || point > 0x10ffff) return false;
    if (point >= 0xd800 && point < 0xe000) return false;
  }
  return true;
}

}  // namespace clicks
