// SPDX-License-Identifier: Apache-2.0
// Sums that several threads make, a block of rows each, added in the order of the blocks.
#pragma once

#include <algorithm>

#include "tensor_arguments.h"

namespace recsys {

template <typename T>
void add_blocks(const T* blocks, int64_t num_blocks, int64_t count, T* total) {
  std::fill(total, total + count, T{0});
  for (int64_t block = 0; block < num_blocks; ++block) {
    for (int64_t k = 0; k < count; ++k) total[k] += blocks[block * count + k];
  }
}

// Adds [blocks, ...] to [...]; both are contiguous, float32 or float64.
inline void add_blocks(const Tensor& blocks, const Tensor& total) {
  const int64_t count = total.numel();
  if (total.scalar_type() == ScalarType::Double) {
    add_blocks(static_cast<const double*>(blocks.data_ptr()), blocks.size(0), count,
               static_cast<double*>(total.data_ptr()));
  } else {
    add_blocks(static_cast<const float*>(blocks.data_ptr()), blocks.size(0), count,
               static_cast<float*>(total.data_ptr()));
  }
}

}  // namespace recsys
