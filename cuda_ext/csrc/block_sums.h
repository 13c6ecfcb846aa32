// SPDX-License-Identifier: Apache-2.0
// Adds the sums of several threads, which each sum a block of rows, in the order of the blocks.
#pragma once

#include <algorithm>

#include "tensor_arguments.h"

namespace recsys {

// Adds [blocks, ...] to [...]; both are contiguous float32.
inline void add_blocks(const Tensor& blocks, const Tensor& total) {
  const auto* from = static_cast<const float*>(blocks.data_ptr());
  auto* to = static_cast<float*>(total.data_ptr());
  const int64_t count = total.numel();
  std::fill(to, to + count, 0.0f);
  for (int64_t block = 0; block < blocks.size(0); ++block, from += count) {
    for (int64_t k = 0; k < count; ++k) to[k] += from[k];
  }
}

}  // namespace recsys
