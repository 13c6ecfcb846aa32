// SPDX-License-Identifier: Apache-2.0
// Parses integers and hexadecimal numbers, 8 bytes at a time, without a branch per character.

#pragma once

#include <cstdint>
#include <cstring>

// CLICKS_PORTABLE leaves out processor-specific code, so that tests run the portable code.
#if defined(__x86_64__) && !defined(CLICKS_PORTABLE)
#define CLICKS_X86 1
#include <immintrin.h>
#endif

#define CLICKS_INLINE inline __attribute__((always_inline))
// Keeps rarely used code out of the hot loops, which it would slow down if it were inlined.
#define CLICKS_APART inline __attribute__((noinline))

namespace clicks {

CLICKS_INLINE uint64_t load64(const uint8_t* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof(value));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

constexpr uint64_t repeat(uint8_t byte) { return 0x0101010101010101ull * byte; }

// Returns 0xff in the bytes of a word after the first `count`, at most 8.
CLICKS_INLINE uint64_t bytes_after(uint64_t count) {
  return ~uint64_t{0} << 4 * count << 4 * count;  // two shifts, since one by 64 is undefined
}

// Returns 0x80 in each byte of a word that is `byte`.
CLICKS_INLINE uint64_t bytes_that_are(uint64_t word, uint8_t byte) {
  const uint64_t x = word ^ repeat(byte);
  return ~(((x & repeat(0x7f)) + repeat(0x7f)) | x | repeat(0x7f));
}

// Moves the first `length` bytes of `raw` to the end, after leading '0' characters.
CLICKS_INLINE uint64_t right_align(uint64_t raw, uint32_t length) {
  const uint32_t half = 4 * length;  // two half shifts, since a shift by 64 is undefined
  return ((raw << (32 - half)) << (32 - half)) | ((repeat('0') >> half) >> half);
}

// Returns 0x80 in each byte that is in [low, high]; bytes of `text` must be below 0x80.
CLICKS_INLINE uint64_t in_range(uint64_t text, uint8_t low, uint8_t high) {
  return (text + repeat(0x80 - low)) & ~(text + repeat(0x7f - high));
}

// Parses integers of more than 8 digits; they are rare, so this is a plain loop.
inline bool parse_long_integer(const uint8_t* digits, uint32_t count, bool negative, int32_t& out) {
  if (count == 0 || count > 10) return false;
  int64_t value = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (digits[i] < '0' || digits[i] > '9') return false;
    value = 10 * value + (digits[i] - '0');
  }
  value = negative ? -value : value;
  if (value < INT32_MIN || value > INT32_MAX) return false;
  out = static_cast<int32_t>(value);
  return true;
}

// Returns the number of eight digits, the first in the lowest byte. If a byte is no digit, clears
// bits of 0x80 in `valid`.
CLICKS_INLINE uint32_t number_of_digits(uint64_t text, uint64_t& valid) {
  valid &= in_range(text & repeat(0x7f), '0', '9') & ~text;
  uint64_t v = text - repeat('0');
  v = v * 10 + (v >> 8);
  v = ((v & 0x000000ff000000ffull) * 0x000f424000000064ull +
       ((v >> 16) & 0x000000ff000000ffull) * 0x0000271000000001ull) >>
      32;
  return static_cast<uint32_t>(v);
}

// Parses the integer in [begin, begin + length), which may be empty. If it is not valid, clears
// bits of 0x80 in `valid`, or in `long_valid` if it is long.
CLICKS_INLINE void parse_integer(const uint8_t* begin, uint32_t length, int32_t& value,
                                 uint64_t& valid, bool& long_valid) {
  const bool negative = *begin == '-';
  const uint32_t digits = length - negative;
  if (__builtin_expect(digits > 8 || (digits == 0 && negative), 0)) {
    long_valid &= parse_long_integer(begin + negative, digits, negative, value);
    return;
  }
  const uint64_t v = right_align(load64(begin + negative), digits);
  const auto number = static_cast<int32_t>(number_of_digits(v, valid));
  value = negative ? -number : number;
}

// Parses the hexadecimal number in [begin, begin + length), which may be empty.
CLICKS_INLINE bool parse_hexadecimal(const uint8_t* begin, uint32_t length, uint32_t& value) {
  if (length > 8) return false;
  const uint64_t v = right_align(load64(begin), length);
  const uint64_t low = v & repeat(0x7f), letter = low | repeat(0x20);
  const uint64_t valid = (in_range(low, '0', '9') | in_range(letter, 'a', 'f')) & ~v;
  const uint64_t bit6 = (v >> 6) & repeat(1);
  uint64_t x = (v & repeat(0x0f)) + (bit6 << 3) + bit6;
  x = ((x << 4) | (x >> 8)) & 0x00ff00ff00ff00ffull;
  x = ((x << 8) | (x >> 16)) & 0x0000ffff0000ffffull;
  value = static_cast<uint32_t>((x << 16) | (x >> 32));
  return (valid & repeat(0x80)) == repeat(0x80);
}

}  // namespace clicks
