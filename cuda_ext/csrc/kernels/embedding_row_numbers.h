// SPDX-License-Identifier: Apache-2.0
// Row numbers of the joint table: from ids, and as keys of the sort.
#pragma once

#include "embedding_vector.h"

namespace recsys::kernels {

// Non-negative remainder; 32-bit division where both fit, which is several times as fast.
__device__ __forceinline__ int64_t remainder_of(int64_t value, int64_t size) {
  if (((static_cast<uint64_t>(value) | static_cast<uint64_t>(size)) >> 32) == 0) {
    return static_cast<uint32_t>(value) % static_cast<uint32_t>(size);
  }
  const int64_t remainder = value % size;
  return remainder < 0 ? remainder + size : remainder;
}

// Returns the bag that a lookup lies in; -1 or num_bags where the offsets do not cover it.
__device__ __forceinline__ int64_t bag_of(const JointRowsArguments& arguments, int64_t position) {
  if (arguments.bag_offsets == nullptr) {
    return position;
  }
  int64_t low = 0;  // first offset above `position` lies in [low, high]
  int64_t high = arguments.num_bags + 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (arguments.bag_offsets[middle] <= position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

// rows[k] = first row of the feature + id; one thread per id. A bad id gives row -1, and the
// smallest position of one goes to `bad`.
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
    const int64_t first = arguments.offsets[feature];
    const int64_t size = arguments.offsets[feature + 1] - first;
    int64_t id = static_cast<const Id*>(arguments.ids)[position];
    if (arguments.hash_indices && size > 0) {
      id = remainder_of(id, size);
    }
    row = is_row(id, size) ? first + id : -1;
  }
  if (row < 0) {
    atomicMin(reinterpret_cast<long long*>(arguments.bad), static_cast<long long>(position));
  }
  if (arguments.row_type == IndexType::kInt64) {
    static_cast<int64_t*>(arguments.rows)[position] = row;
  } else {
    static_cast<int32_t*>(arguments.rows)[position] = static_cast<int32_t>(row);
  }
}

// Keys and values of the sort: a row outside the table becomes -1, whose bits are above those of
// every row, so that all such rows end up last.
template <typename Row>
__global__ void make_sort_keys(const Row* rows, int64_t count, int64_t num_table_rows, Row* keys,
                               int32_t* positions) {
  const int64_t position = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (position < count) {
    const Row row = rows[position];
    keys[position] = is_row(row, num_table_rows) ? row : static_cast<Row>(-1);
    positions[position] = static_cast<int32_t>(position);
  }
}

}  // namespace recsys::kernels
