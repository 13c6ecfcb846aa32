// SPDX-License-Identifier: Apache-2.0
// A layer on few samples: blocks of weight rows times groups of samples, sums in registers. And the
// gradient of a ReLU in tiles of as many rows and columns as a vector has lanes.
#pragma once

#include "../../cpu/vector.h"
#include "../kernels.h"

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
      // A NaN must stay one: it is not below zero.
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

// The gradient where the output is not zero or below. A NaN of the output lets it pass.
RECSYS_INLINE Vector<float> where_positive(Vector<float> gradient, Vector<float> output) {
  return output <= Vector<float>{} ? Vector<float>{} : gradient;
}

template <typename Stored>
void relu_backward(const ReluBackwardArguments& arguments, int64_t begin, int64_t end) {
  constexpr int kTile = kLanes<float>;
  const int64_t columns = arguments.num_columns;
  const int64_t rows = arguments.num_rows;
  const Stored* const gradient = static_cast<const Stored*>(arguments.gradient);
  const Stored* const output = static_cast<const Stored*>(arguments.output);
  Stored* const delta = static_cast<Stored*>(arguments.delta);
  Stored* const transposed = static_cast<Stored*>(arguments.transposed);
  float* const sums = arguments.block_sums + begin / kReluBackwardRows * columns;
  const int64_t whole_rows = begin + (end - begin) / kTile * kTile;
  const int64_t whole_columns = columns / kTile * kTile;
  for (int64_t column = 0; column < whole_columns; column += kTile) {
    Vector<float> sum = {};
    for (int64_t row = begin; row < whole_rows; row += kTile) {
      Vector<float> tile[kTile];
      RECSYS_UNROLL for (int i = 0; i < kTile; ++i) {
        const int64_t at = (row + i) * columns + column;
        tile[i] = where_positive(load(gradient + at), load(output + at));
        store(delta + at, tile[i]);
        sum += tile[i];
      }
      if (transposed == nullptr) continue;
      transpose(tile);
      RECSYS_UNROLL for (int i = 0; i < kTile; ++i) {
        store(transposed + (column + i) * rows + row, tile[i]);
      }
    }
    store(sums + column, sum);
  }
  const auto one = [&](int64_t row, int64_t column) {
    const int64_t at = row * columns + column;
    const float value = widen(output[at]) <= 0 ? 0.0f : widen(gradient[at]);
    narrow(value, delta[at]);
    if (transposed != nullptr) narrow(value, transposed[column * rows + row]);
    return value;
  };
  for (int64_t column = 0; column < columns; ++column) {
    const bool is_whole = column < whole_columns;
    float sum = is_whole ? sums[column] : 0.0f;
    for (int64_t row = is_whole ? whole_rows : begin; row < end; ++row) sum += one(row, column);
    sums[column] = sum;
  }
}

inline void relu_backward_rows(const ReluBackwardArguments& arguments, int64_t begin, int64_t end) {
  with_stored(arguments.dtype,
              [&](auto stored) { relu_backward<decltype(stored)>(arguments, begin, end); });
}

}  // namespace recsys::cpu::RECSYS_ISA
