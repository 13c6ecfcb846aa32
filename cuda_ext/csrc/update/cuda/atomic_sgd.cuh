// SPDX-License-Identifier: Apache-2.0
// Plain SGD on rows as they come, by atomic additions: needs no sort, yet the order of the
// additions, and so the last bits of the result, differ from run to run.
#pragma once

#include "../../cuda/row_vectors.cuh"
#include "../kernels.h"

namespace recsys::kernels {

// One team per lookup. A width of 4 adds 16 bytes at once where the device can.
template <typename Gradient, int Width>
__global__ void add_sgd_rows(UpdateArguments arguments, int lanes) {
  if (arguments.overflow != nullptr && load_global(arguments.overflow)) {
    return;
  }
  const Team team(lanes);
  const int64_t lookup = team.index();
  if (lookup >= arguments.count) {
    return;
  }
  const int64_t row = row_numbers(arguments.rows, arguments.row_type)[lookup];
  if (!is_row(row, arguments.num_table_rows)) {
    return;
  }
  const int64_t gradient_row =
      arguments.source == nullptr ? lookup : load_global(arguments.source + lookup);
  float rate = *arguments.lr;
  rate *= arguments.inverse_scale == nullptr ? 1.0f : *arguments.inverse_scale;
  rate *= arguments.scale == nullptr ? 1.0f : load_global(arguments.scale + lookup);
  const Gradient* gradient =
      static_cast<const Gradient*>(arguments.gradients) + gradient_row * arguments.dim;
  float* weights = static_cast<float*>(arguments.table) + row * arguments.dim;
  for (int64_t column = team.lane * Width; column < arguments.dim; column += team.lanes * Width) {
    const auto columns = load_columns<Width>(gradient, column);
    float change[Width];
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      change[i] = -rate * convert<float>(columns.values[i]);
    }
    if constexpr (Width == 4) {
      atomic_add_vector(weights + column, change);
    } else {
#pragma unroll
      for (int i = 0; i < Width; ++i) {
        atomicAdd(weights + column + i, change[i]);
      }
    }
  }
}

}  // namespace recsys::kernels
