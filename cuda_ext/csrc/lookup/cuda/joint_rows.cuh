// SPDX-License-Identifier: Apache-2.0
// Converts ids of each feature to row numbers of the joint table.
#pragma once

#include "../../cuda/row_vectors.cuh"
#include "../lookup_arguments.h"

namespace recsys::kernels {

// Non-negative remainder; 32-bit division where both fit, which is several times as fast.
__device__ __forceinline__ int64_t remainder_of(int64_t value, int64_t size) {
  if (((static_cast<uint64_t>(value) | static_cast<uint64_t>(size)) >> 32) == 0) {
    return static_cast<uint32_t>(value) % static_cast<uint32_t>(size);
  }
  const int64_t remainder = value % size;
  return remainder < 0 ? remainder + size : remainder;
}

// Returns the bag of a lookup; -1 or num_bags if the offsets do not cover it.
__device__ __forceinline__ int64_t bag_of(const JointRowsArguments& arguments, int64_t position) {
  if (arguments.bag_offsets == nullptr) {
    return position;
  }
  int64_t low = 0;  // first offset above `position` lies in [low, high]
  int64_t high = arguments.num_bags + 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (load_global(arguments.bag_offsets + middle) <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

// rows[k] = first row of the feature + id; one thread per id. A bad id gives row -1; the smallest
// position of a bad id goes to `bad`.
template <typename Id>
__global__ void number_joint_rows(JointRowsArguments arguments) {
  const int64_t position = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (position >= arguments.count) {
    return;
  }
  const int64_t bag = bag_of(arguments, position);
  int64_t row = -1;
  if (bag >= 0 && bag < arguments.num_bags) {
    const int64_t feature = remainder_of(bag, arguments.num_features);
    const int64_t first = load_global(arguments.offsets + feature);
    const int64_t size = load_global(arguments.offsets + feature + 1) - first;
    int64_t id = load_global(static_cast<const Id*>(arguments.ids) + position);
    if (arguments.hash_indices && size > 0) {
      id = remainder_of(id, size);
    }
    row = is_row(id, size) ? first + id : -1;
  }
  if (row < 0) {
    atomicMin(reinterpret_cast<long long*>(arguments.bad), static_cast<long long>(position));
  }
  if (arguments.row_type == IndexType::kInt64) {
    store_global(static_cast<int64_t*>(arguments.rows) + position, row);
  } else {
    store_global(static_cast<int32_t*>(arguments.rows) + position, static_cast<int32_t>(row));
  }
}

}  // namespace recsys::kernels
