// SPDX-License-Identifier: Apache-2.0
// Conversions among floating-point formats, bit by bit, as a CUDA device rounds them.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../csrc/cuda/number_types.cuh"
#include "cuda_runtime.h"

namespace recsys {

inline float to_float(bfloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

inline float to_float(float16 value) {
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t fraction = value.bits & 0x3ffu;
  const float sign = (value.bits & 0x8000u) != 0 ? -1.0f : 1.0f;
  if (exponent == 0x1fu) {
    return fraction == 0 ? sign * INFINITY : NAN;
  }
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(fraction), -24)
                       : sign * std::ldexp(static_cast<float>(fraction | 0x400u),
                                           static_cast<int>(exponent) - 25);
}

inline bfloat16 round_to_bfloat16(float value) {
  if (std::isnan(value)) {
    return {0x7fff};
  }
  const uint32_t bits = __float_as_uint(value);
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float16 round_to_float16(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000u : 0u;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) {
    return {0x7fff};
  }
  if (magnitude >= 65520.0f) {  // halfway between the largest number and the next power of two
    return {static_cast<uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude == 0.0f) {
    return {sign};
  }
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // Units of the last place: 2^(exponent - 11), not below that of subnormal numbers, 2^-24.
  const int unit = exponent < -13 ? -24 : exponent - 11;
  // nearbyint rounds ties to even. A carry into the exponent is the next number, as it should be.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, -unit)));
  const uint32_t bits = units + (static_cast<uint32_t>(unit + 24) << 10);
  return {static_cast<uint16_t>(sign | bits)};
}

template <typename T>
T round_to(float value) {
  if constexpr (std::is_same_v<T, float16>) {
    return round_to_float16(value);
  } else {
    return round_to_bfloat16(value);
  }
}

template <typename T>
uint32_t pack_pair(float low, float high) {
  return round_to<T>(low).bits | static_cast<uint32_t>(round_to<T>(high).bits) << 16;
}

inline uint32_t round_to_tf32(float value) {
  return std::isfinite(value) ? (__float_as_uint(value) + 0x1000u) & ~0x1fffu
                              : __float_as_uint(value);
}

}  // namespace recsys
