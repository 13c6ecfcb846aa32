// SPDX-License-Identifier: Apache-2.0
// Hashes of texts, and the check that bytes are text.

#pragma once

#include <cstdint>
#include <cstring>

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
      for (const uint64_t lane : lanes) hash = (hash ^ step(0, lane)) * kPrimes[0] + kPrimes[3];
    }
    hash += size;
    for (; end - text >= 8; text += 8) {
      hash = turned(hash ^ step(0, load<uint64_t>(text)), 27) * kPrimes[0] + kPrimes[3];
    }
    if (end - text >= 4) {
      hash = turned(hash ^ load<uint32_t>(text) * kPrimes[0], 23) * kPrimes[1] + kPrimes[2];
      text += 4;
    }
    for (; text < end; ++text) hash = turned(hash ^ *text * kPrimes[4], 11) * kPrimes[0];
    hash = (hash ^ hash >> 33) * kPrimes[1];
    hash = (hash ^ hash >> 29) * kPrimes[2];
    return hash ^ hash >> 32;
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
  static uint64_t turned(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
  static uint64_t step(uint64_t lane, uint64_t word) {
    return turned(lane + word * kPrimes[1], 31) * kPrimes[0];
  }
};

// Whether all bytes of two words are printable ASCII.
inline bool are_printable(uint64_t a, uint64_t b) {
  constexpr uint64_t kOnes = 0x0101010101010101ull;
  const auto outside = [](uint64_t word) {  // 0x80 in a byte that is not
    return word | (word - 0x20 * kOnes) | ((word & 0x7f * kOnes) + kOnes);
  };
  return ((outside(a) | outside(b)) & 0x80 * kOnes) == 0;
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
