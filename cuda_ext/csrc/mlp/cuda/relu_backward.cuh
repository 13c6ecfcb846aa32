// SPDX-License-Identifier: Apache-2.0
// Gradient of a ReLU's input and its sums over the samples, in one pass.
#pragma once

#include "../../cuda/row_vectors.cuh"
#include "../kernels.h"

namespace recsys::kernels {

constexpr int kSumLanes = 32;  // columns, or vectors of them, that a block takes side by side

// Adds what the teams of a block have for each of its columns, in the order of the teams.
template <typename Sum>
__device__ __forceinline__ void add_over_teams(SharedPointer<Sum> of_teams, int block_columns,
                                               int64_t first, int64_t num_columns, Sum* totals) {
  const int threads = static_cast<int>(blockDim.x);
  const int teams = threads / kSumLanes;
  __syncthreads();
  for (int column = threadIdx.x; column < block_columns; column += threads) {
    if (first + column < num_columns) {
      Sum total = of_teams[column];
      for (int team = 1; team < teams; ++team) {
        total += of_teams[team * block_columns + column];
      }
      totals[first + column] = total;
    }
  }
}

// delta = 0 where output <= 0, else gradient; block_sums has the sums of each block's samples. The
// teams of a block, a warp each, take turns at its samples. kWidth neighbouring columns a lane.
template <typename Element, typename Sum, int kWidth>
__global__ void mask_gradient(ReluBackwardArguments arguments) {
  constexpr int kBlockColumns = kSumLanes * kWidth;
  const int64_t num_columns = arguments.num_columns;
  const int64_t across = (num_columns + kBlockColumns - 1) / kBlockColumns;
  const int64_t block = blockIdx.x / across;
  const int64_t first_column = blockIdx.x % across * kBlockColumns;
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int team = static_cast<int>(threadIdx.x) / kSumLanes;
  const int teams = static_cast<int>(blockDim.x) / kSumLanes;
  const int64_t column = first_column + lane * kWidth;
  const int64_t first = block * kReluBackwardRows;
  const int64_t last = first + kReluBackwardRows < arguments.num_rows ? first + kReluBackwardRows
                                                                      : arguments.num_rows;
  const auto* gradient = static_cast<const Element*>(arguments.gradient);
  const auto* output = static_cast<const Element*>(arguments.output);
  auto* delta = static_cast<Element*>(arguments.delta);
  Sum sums[kWidth] = {};
  if (column < num_columns) {
#pragma unroll 4
    for (int64_t row = first + team; row < last; row += teams) {
      const int64_t at = row * num_columns + column;
      Columns<Element, kWidth> values = load_columns<kWidth>(gradient, at);
      const Columns<Element, kWidth> outputs = load_columns<kWidth>(output, at);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        if (convert<Sum>(outputs.values[k]) <= Sum{0}) {  // a NaN is not
          values.values[k] = Element{};
        }
        sums[k] += convert<Sum>(values.values[k]);
      }
      store_columns<Element, kWidth>(delta, at, values);
    }
  }
  const SharedPointer<Sum> of_teams = dynamic_shared<Sum>();
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    of_teams[team * kBlockColumns + lane * kWidth + k] = sums[k];
  }
  add_over_teams(of_teams, kBlockColumns, first_column, num_columns,
                 static_cast<Sum*>(arguments.block_sums) + block * num_columns);
}

// sums = block_sums added over the blocks. The teams of a block take turns at them.
template <typename Sum>
__global__ void add_block_sums(ReluBackwardArguments arguments) {
  const int64_t num_columns = arguments.num_columns;
  const int64_t num_blocks = (arguments.num_rows + kReluBackwardRows - 1) / kReluBackwardRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kSumLanes;
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int team = static_cast<int>(threadIdx.x) / kSumLanes;
  const int teams = static_cast<int>(blockDim.x) / kSumLanes;
  const int64_t column = first_column + lane;
  const auto* block_sums = static_cast<const Sum*>(arguments.block_sums);
  Sum sum{0};
  if (column < num_columns) {
#pragma unroll 4
    for (int64_t block = team; block < num_blocks; block += teams) {
      sum += block_sums[block * num_columns + column];
    }
  }
  const SharedPointer<Sum> of_teams = dynamic_shared<Sum>();
  of_teams[team * kSumLanes + lane] = sum;
  add_over_teams(of_teams, kSumLanes, first_column, num_columns, static_cast<Sum*>(arguments.sums));
}

}  // namespace recsys::kernels
