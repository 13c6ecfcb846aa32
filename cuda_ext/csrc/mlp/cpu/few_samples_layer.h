// SPDX-License-Identifier: Apache-2.0
// A layer on few samples: blocks of weight rows times groups of samples, sums in registers.
#pragma once

#include "../../cpu/vector.h"
#include "../mlp_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

// Sums of kRows outputs of kSamples samples; both are small enough to stay in registers.
template <typename Stored, int kRows, int kSamples>
RECSYS_INLINE void layer_block(const LayerArguments& arguments, int64_t row, int64_t sample) {
  const int64_t columns = arguments.num_columns;
  const Stored* const weights = static_cast<const Stored*>(arguments.weights) + row * columns;
  const float* const input = arguments.input + sample * columns;
  Vector<float> sums[kRows][kSamples];
  RECSYS_UNROLL for (int r = 0; r < kRows; ++r) {
    RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) sums[r][s] = Vector<float>{};
  }
  for (int64_t k = 0; k < columns; k += kLanes<float>) {
    Vector<float> values[kSamples];
    RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) values[s] = load(input + s * columns + k);
    RECSYS_UNROLL for (int r = 0; r < kRows; ++r) {
      const Vector<float> weight = load(weights + r * columns + k);
      RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) sums[r][s] += weight * values[s];
    }
  }
  const float* const bias = arguments.bias + row;
  float* const output = arguments.output + sample * arguments.output_stride + row;
  RECSYS_UNROLL for (int r = 0; r < kRows; ++r) {
    RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) {
      const float result = sum(sums[r][s]) + bias[r];
      // Keeps NaN, which is not below zero.
      output[s * arguments.output_stride + r] = arguments.relu && result < 0 ? 0.0f : result;
    }
  }
}

template <typename Stored, int kRows>
RECSYS_INLINE void layer_rows(const LayerArguments& arguments, int64_t row) {
  constexpr int kRowsOfFour = kRows == 8 ? 4 : kRows;
  int64_t sample = 0;
  for (; sample + 4 <= arguments.batch; sample += 4) {
    for (int r = 0; r < kRows; r += kRowsOfFour) {
      layer_block<Stored, kRowsOfFour, 4>(arguments, row + r, sample);
    }
  }
  for (; sample < arguments.batch; ++sample) {
    layer_block<Stored, kRows, 1>(arguments, row, sample);
  }
}

template <typename Stored>
void layer(const LayerArguments& arguments, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + 8 <= end; row += 8) layer_rows<Stored, 8>(arguments, row);
  for (; row < end; ++row) layer_rows<Stored, 1>(arguments, row);
}

inline void layer_range(const LayerArguments& arguments, int64_t begin, int64_t end) {
  with_stored(arguments.dtype,
              [&](auto stored) { layer<decltype(stored)>(arguments, begin, end); });
}

}  // namespace recsys::cpu::RECSYS_ISA
