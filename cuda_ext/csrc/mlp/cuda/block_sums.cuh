// SPDX-License-Identifier: Apache-2.0
// Sums over the samples, by columns: each block adds its samples, a second kernel adds the blocks.
// The order is fixed, so that a sum does not change from run to run.
#pragma once

#include "../../cuda/row_vectors.cuh"

namespace recsys::kernels {

constexpr int kRowsInFlight = 4;  // rows that a warp starts to load before it uses one
constexpr int kSumLanes = 32;     // columns, or vectors of them, that a block takes side by side

// Samples and columns of a block. Its teams, a warp each, take turns at the samples; a lane takes
// kWidth neighbouring columns.
template <int kWidth, int64_t kBlockRows>
struct BlockRange {
  static constexpr int kBlockColumns = kSumLanes * kWidth;

  int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  int team = static_cast<int>(threadIdx.x) / kSumLanes;
  int teams = static_cast<int>(blockDim.x) / kSumLanes;
  int64_t block;         // among those of the same columns
  int64_t first_column;  // of the block
  int64_t column;        // of the lane, the first
  int64_t first;         // sample
  int64_t last;          // sample after them

  __device__ __forceinline__ BlockRange(int64_t num_rows, int64_t num_columns) {
    const int64_t across = (num_columns + kBlockColumns - 1) / kBlockColumns;
    block = blockIdx.x / across;
    first_column = blockIdx.x % across * kBlockColumns;
    column = first_column + lane * kWidth;
    first = block * kBlockRows;
    last = first + kBlockRows < num_rows ? first + kBlockRows : num_rows;
  }
};

// Adds the sums of a block's teams for each of its columns, in the order of the teams.
__device__ __forceinline__ void add_over_teams(SharedPointer<float> of_teams, int block_columns,
                                               int64_t first, int64_t num_columns, float* totals) {
  const int threads = static_cast<int>(blockDim.x);
  const int teams = threads / kSumLanes;
  __syncthreads();
  for (int column = threadIdx.x; column < block_columns; column += threads) {
    if (first + column < num_columns) {
      float total = of_teams[column];
      for (int team = 1; team < teams; ++team) {
        total += of_teams[team * block_columns + column];
      }
      totals[first + column] = total;
    }
  }
}

// Sums of all blocks.
struct BlockSums {
  const float* of_blocks;  // [blocks, N]
  float* sums;             // [N]
  int64_t num_blocks;
  int64_t num_columns;  // N
};

// sums = of_blocks added over the blocks. The teams of a block take turns at them.
__global__ void add_block_sums(BlockSums arguments) {
  const int64_t num_columns = arguments.num_columns;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kSumLanes;
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes;
  const int team = static_cast<int>(threadIdx.x) / kSumLanes;
  const int teams = static_cast<int>(blockDim.x) / kSumLanes;
  const int64_t column = first_column + lane;
  const auto* of_blocks = arguments.of_blocks;
  float sum = 0;
  if (column < num_columns) {
#pragma unroll 4
    for (int64_t block = team; block < arguments.num_blocks; block += teams) {
      sum += of_blocks[block * num_columns + column];
    }
  }
  const SharedPointer<float> of_teams = dynamic_shared<float>();
  of_teams[team * kSumLanes + lane] = sum;
  add_over_teams(of_teams, kSumLanes, first_column, num_columns, arguments.sums);
}

}  // namespace recsys::kernels
