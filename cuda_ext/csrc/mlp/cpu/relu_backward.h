// SPDX-License-Identifier: Apache-2.0
// The gradient of a ReLU in tiles of as many rows and columns as a vector has lanes.
#pragma once

#include "../../cpu/vector.h"
#include "../mlp_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

// The gradient where the output is not zero or below. A NaN in the output passes it on too.
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
