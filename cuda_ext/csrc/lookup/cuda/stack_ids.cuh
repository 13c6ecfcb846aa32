// SPDX-License-Identifier: Apache-2.0
// Puts columns of ids of several integer types side by side.
#pragma once

#include "../../cuda/row_vectors.cuh"
#include "../lookup_arguments.h"

namespace recsys::kernels {

constexpr int kStackedSamples = 64;  // of a block

__device__ __forceinline__ int64_t read_id(const void* column, IndexType type, int64_t sample) {
  switch (type) {
    case IndexType::kInt8:
      return load_global(static_cast<const int8_t*>(column) + sample);
    case IndexType::kInt16:
      return load_global(static_cast<const int16_t*>(column) + sample);
    case IndexType::kInt32:
      return load_global(static_cast<const int32_t*>(column) + sample);
    default:
      return load_global(static_cast<const int64_t*>(column) + sample);
  }
}

// Samples of a block go through shared memory: a warp reads a column, in order; then all threads
// write samples, in order. An odd distance between samples keeps the lanes of a warp, which write
// one column of 32 samples, in different banks.
template <typename Id>
__global__ void stack_columns(StackIdsArguments arguments) {
  const SharedPointer<Id> tile = dynamic_shared<Id>();
  const int num_columns = arguments.num_columns;
  const int distance = num_columns | 1;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kStackedSamples;
  const int64_t rest = arguments.batch - first;
  const int samples = rest < kStackedSamples ? static_cast<int>(rest) : kStackedSamples;
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (int column = thread / kWarpLanes; column < num_columns; column += threads / kWarpLanes) {
    const void* ids = arguments.columns[column];
    const IndexType type = arguments.column_types[column];
    for (int sample = thread % kWarpLanes; sample < samples; sample += kWarpLanes) {
      tile[sample * distance + column] = static_cast<Id>(read_id(ids, type, first + sample));
    }
  }
  __syncthreads();
  Id* stacked = static_cast<Id*>(arguments.ids) + first * arguments.stride;
  for (int i = thread; i < samples * num_columns; i += threads) {
    const int sample = i / num_columns;
    const int column = i - sample * num_columns;
    store_global<Id>(stacked + sample * arguments.stride + column,
                     tile[sample * distance + column]);
  }
}

}  // namespace recsys::kernels
