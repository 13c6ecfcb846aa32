// SPDX-License-Identifier: Apache-2.0
// Gradient of a ReLU's input and its sums over the samples, in one pass.
#pragma once

#include "../mlp_arguments.h"
#include "block_sums.cuh"

namespace recsys::kernels {

// delta = 0 where output <= 0, else gradient; block_sums has the sums of each block's samples. The
// teams of a block, a warp each, take turns at its samples. kWidth neighbouring columns a lane.
template <typename Element, int kWidth>
__global__ void mask_gradient(ReluBackwardArguments arguments) {
  const int64_t num_columns = arguments.num_columns;
  const BlockRange<kWidth, kReluBackwardRows> range(arguments.num_rows, num_columns);
  constexpr int kBlockColumns = kSumLanes * kWidth;
  const int64_t column = range.column;
  const int64_t last = range.last;
  const int teams = range.teams;
  const auto* gradient = static_cast<const Element*>(arguments.gradient);
  const auto* output = static_cast<const Element*>(arguments.output);
  auto* delta = static_cast<Element*>(arguments.delta);
  float sums[kWidth] = {};
  if (column < num_columns) {
    for (int64_t row = range.first + range.team; row < last; row += kRowsInFlight * teams) {
      Columns<Element, kWidth> values[kRowsInFlight];
      Columns<Element, kWidth> outputs[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        const int64_t at = (row + i * teams) * num_columns + column;
        if (row + i * teams < last) {
          values[i] = load_columns<kWidth>(gradient, at);
          outputs[i] = load_columns<kWidth>(output, at);
        }
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (row + i * teams < last) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            if (convert<float>(outputs[i].values[k]) <= 0.0f) {  // false for NaN
              values[i].values[k] = Element{};
            }
            sums[k] += convert<float>(values[i].values[k]);
          }
          store_columns<Element, kWidth>(delta, (row + i * teams) * num_columns + column,
                                         values[i]);
        }
      }
    }
  }
  const SharedPointer<float> of_teams = dynamic_shared<float>();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    of_teams[range.team * kBlockColumns + range.lane * kWidth + k] = sums[k];
  }
  add_over_teams(of_teams, kBlockColumns, range.first_column, num_columns,
                 arguments.block_sums + range.block * num_columns);
}

}  // namespace recsys::kernels
