// SPDX-License-Identifier: Apache-2.0
// Conversions among floating-point formats, as a CUDA device rounds them.
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

// The compiler's own type rounds as a device does, to nearest even.
inline float to_float(float16 value) {
  _Float16 number;
  std::memcpy(&number, &value, sizeof(number));
  return static_cast<float>(number);
}

inline bfloat16 round_to_bfloat16(float value) {
  if (std::isnan(value)) {
    return {0x7fff};
  }
  const uint32_t bits = __float_as_uint(value);
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float16 round_to_float16(float value) {
  if (std::isnan(value)) {
    return {0x7fff};
  }
  const auto number = static_cast<_Float16>(value);
  float16 result;
  std::memcpy(&result, &number, sizeof(result));
  return result;
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
