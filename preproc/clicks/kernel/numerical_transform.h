// SPDX-License-Identifier: Apache-2.0
// The transform of numerical features, in float32 and float16.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "memory.h"
#include "row_format.h"

namespace clicks {

// Rounds to nearest even. ln(n) of an integer n >= 1 is 0 or a normal float16 far from its limits.
inline uint16_t float16_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (bits == 0) return 0;
  bits += 0x0fff + ((bits >> 13) & 1);
  return static_cast<uint16_t>((bits >> 13) - ((127 - 15) << 10));
}

// The format requires two roundings: float64 to float32, then float32 to float16.
class NumericalTransform {
 public:
  explicit NumericalTransform(const RowHeader& rule)
      : minimum_(rule.minimum), offset_(rule.offset), small_(kSmall) {
    for (int64_t i = 1; i < kSmall; ++i) small_[i] = both(i);
    const int64_t shifted = std::max<int64_t>(0, rule.minimum) + rule.offset;
    missing_ = rule.missing_is_zero_after ? Value{0, 0} : both(shifted);
  }

  struct Value {
    float float32;
    uint16_t float16;
  };

  CLICKS_INLINE Value operator()(int32_t raw, bool present) const {
    if (!present) return missing_;
    const int64_t shifted = std::max<int64_t>(raw, minimum_) + offset_;
    return shifted < kSmall ? small_[static_cast<size_t>(shifted)] : both(shifted);
  }

 private:
  static constexpr int64_t kSmall = 1 << 14;

  static Value both(int64_t shifted) {
    const float rounded = static_cast<float>(std::log(static_cast<double>(shifted)));
    return {rounded, float16_bits(rounded)};
  }

  int64_t minimum_;
  int64_t offset_;
  Pages<Value> small_;
  Value missing_;
};

}  // namespace clicks
