// SPDX-License-Identifier: Apache-2.0
// Decimal numbers: the float64 nearest to a text, and the float32 nearest to a logarithm.

#pragma once

#include <locale.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "digits.h"

namespace clicks {

constexpr uint32_t kMaxNumberBytes = 64;

// Numbers from here on round to infinity in float32.
constexpr double kFloat32End = 0x1.ffffffp127;

// The locale whose numbers have a decimal point.
inline locale_t c_locale() {
  static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

// Powers of ten that float64 has exactly.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// Reads -?[0-9]*\.?[0-9]* of up to 8 bytes, without a branch per character; returns false for every
// other text. The 9 bytes from `field` on must be readable.
CLICKS_INLINE bool parse_short_number(const uint8_t* field, uint32_t length, double& value) {
  const uint32_t negative = length > 0 && *field == '-';
  const uint32_t size = length - negative;
  if (size - 1 > 7) return false;  // also if it is 0
  const uint64_t text = load64(field + negative) & ~bytes_after(size);
  const uint64_t points = bytes_that_are(text, '.');
  // Removes the first point, if there is one; another one is no digit.
  const uint64_t before = ((points & -points) >> 7) - 1;
  const uint32_t has_point = points != 0;
  const uint32_t digits = size - has_point;
  if (digits == 0) return false;
  const uint64_t without = (text & before) | (text >> 8 & ~before);
  uint64_t valid = repeat(0x80);
  const uint32_t number = number_of_digits(right_align(without, digits), valid);
  const uint32_t decimals =
      has_point ? digits - __builtin_ctzll(points | uint64_t{1} << 63) / 8 : 0;
  // Both numbers are exact, so their quotient is rounded once.
  value = static_cast<double>(number) / kPowers[decimals];
  if (negative) value = 0.0 - value;  // 0, not -0
  return valid == repeat(0x80);
}

// Reads any number: see `parse_number`.
inline bool parse_long_number(const uint8_t* field, uint32_t length, double& value) {
  if (length > kMaxNumberBytes) return false;
  const uint8_t* at = field;
  const uint8_t* const end = field + length;
  const bool negative = at < end && *at == '-';
  at += negative;
  uint64_t mantissa = 0;
  int exponent = 0;
  bool has_digits = false, is_whole = true;  // whether all digits are in the mantissa
  const auto take_digits = [&](int each) {
    for (; at < end && *at >= '0' && *at <= '9'; ++at) {
      has_digits = true;
      if (mantissa < UINT64_MAX / 10 - 1) {
        mantissa = 10 * mantissa + (*at - '0');
        exponent += each;
      } else {
        is_whole = false;
      }
    }
  };
  take_digits(0);
  if (at < end && *at == '.') {
    ++at;
    take_digits(-1);
  }
  if (!has_digits) return false;
  if (at < end && (*at == 'e' || *at == 'E')) {
    ++at;
    const bool is_minus = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    const uint8_t* const first = at;
    int power = 0;
    for (; at < end && at - first < 3 && *at >= '0' && *at <= '9'; ++at) {
      power = 10 * power + (*at - '0');
    }
    if (at == first) return false;  // a fourth digit is refused below
    exponent += is_minus ? -power : power;
  }
  if (at < end) return false;
  // Both numbers are exact, so their product or quotient is rounded once (Clinger 1990).
  if (is_whole && mantissa <= uint64_t{1} << 53 && exponent >= -22 && exponent <= 22) {
    const double digits = static_cast<double>(mantissa);
    value = exponent < 0 ? digits / kPowers[-exponent] : digits * kPowers[exponent];
    if (negative) value = -value;
  } else {
    char text[kMaxNumberBytes + 1];
    std::memcpy(text, field, length);
    text[length] = 0;
    value = strtod_l(text, nullptr, c_locale());
  }
  value += 0.0;  // -0
  return std::fabs(value) < kFloat32End;
}

// Reads -?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})? of at most 64 bytes; returns whether
// it is valid and within float32. -0 is read as 0. See `parse_short_number` for the bytes after it.
CLICKS_INLINE bool parse_number(const uint8_t* field, uint32_t length, double& value) {
  return parse_short_number(field, length, value) || parse_long_number(field, length, value);
}

#if __LDBL_MANT_DIG__ >= 113
using Wide = long double;
#else
using Wide = __float128;
#endif

// e^x to about 110 bits, by its series around 0; slow.
inline Wide exponential(double x) {
  const Wide log_2 =
      Wide{0x1.62e42fefa39efp-1} + Wide{0x1.abc9e3b39803fp-56} + Wide{0x1.7b57a079a1934p-111};
  const int power = static_cast<int>(std::lrint(x * 1.4426950408889634));
  const Wide rest = Wide{x} - power * log_2;
  Wide sum = 1, term = 1;
  for (int n = 1; n <= 32; ++n) sum += term *= rest / n;
  return sum * Wide{std::ldexp(1.0, power)};
}

// How a decimal number becomes a feature.
struct NumberRule {
  enum Kind : uint64_t { kStandardised, kLog, kSignedLog };

  uint64_t kind;
  double minimum;  // of kLog: the logarithm of max(number, minimum) + offset
  double offset;
  double mean;  // of the others: z = (number - mean) / deviation; a missing number is the mean
  double deviation;

  float operator()(double number) const {
    if (kind == kLog) return log_of(std::max(number, minimum) + offset);
    const double z = (number - mean) / deviation;
    if (kind == kSignedLog) {
      const float size = log_of(std::fabs(z) + 1);
      return z < 0 ? -size : size;
    }
    constexpr double kMost = std::numeric_limits<float>::max();
    return static_cast<float>(std::clamp(z, -kMost, kMost));
  }

  // The float32 nearest to the logarithm.
  static float log_of(double shifted) {
    const double log = std::log(shifted);
    // Libraries differ in the last bits. If these matter, compare with the midpoint of two float32.
    const double margin = std::fabs(log) * 0x1p-50;
    const float below = static_cast<float>(log - margin), above = static_cast<float>(log + margin);
    if (below == above) return below;
    const double middle = (static_cast<double>(below) + above) / 2;
    return Wide{shifted} > exponential(middle) ? above : below;
  }
};

}  // namespace clicks
