// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding of float32 to bfloat16: the probability of rounding up is the cut-off
// fraction, so that many small updates add up on average. The random bits depend only on the seed,
// the step, the row and the column, so every backend writes the same bits. reference.py defines the
// same.
#pragma once

#include <cstdint>

#include "../host_device.h"

namespace recsys {

// The finalizer of MurmurHash3 (Austin Appleby, public domain): every input bit affects every
// output bit.
RECSYS_HOST_DEVICE uint32_t mix_bits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  x ^= x >> 16;
  return x;
}

// One key per row and step; `column_bits` draws from it.
RECSYS_HOST_DEVICE uint32_t rounding_key(uint32_t seed, uint32_t step, int64_t row) {
  const uint32_t low = static_cast<uint32_t>(row);
  const uint32_t high = static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32);
  return mix_bits(mix_bits(mix_bits(seed ^ mix_bits(step)) ^ high) ^ low);
}

// Returns 16 random bits of a column, in [0, 65536).
RECSYS_HOST_DEVICE uint32_t column_bits(uint32_t key, uint32_t column) {
  return mix_bits(key + column * 0x9e3779b9u) >> 16;
}

// Rounds the bits of a float32 to those of a bfloat16. Infinities and NaN are kept.
RECSYS_HOST_DEVICE uint16_t round_stochastically(uint32_t float_bits, uint32_t random16) {
  if ((float_bits & 0x7f800000u) == 0x7f800000u) {
    const bool is_nan = (float_bits & 0x007fffffu) != 0;
    return static_cast<uint16_t>((float_bits >> 16) | (is_nan ? 0x0040u : 0u));
  }
  return static_cast<uint16_t>((float_bits + random16) >> 16);
}

}  // namespace recsys
