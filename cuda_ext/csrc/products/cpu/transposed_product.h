// SPDX-License-Identifier: Apache-2.0
// A product with a transposed matrix: a few rows at a time, into tiles in registers.
#pragma once

#include "../../cpu/tiles.h"
#include "../../cpu/vector.h"
#include "../transposed_product_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

// Nothing is packed or transposed: a tile takes the factors of its rows from one cache line of `a`,
// and rows of both matrices stay in the first-level cache for all tiles.
inline void transposed_product(const TransposedProductArguments& arguments, int64_t begin,
                               int64_t end) {
  const float* const a = arguments.a;
  const float* const b = arguments.b;
  float* const block = arguments.blocks + begin / kProductRows * arguments.rows * arguments.columns;
  PrefetchQueue queue;
  const int a_stride = static_cast<int>(arguments.a_stride);
  const int b_stride = static_cast<int>(arguments.b_stride);
  const int columns = static_cast<int>(arguments.columns);
  for (int64_t k = begin; k < end; k += kSumBlock) {
    const int depth = static_cast<int>(end - k < kSumBlock ? end - k : kSumBlock);
    multiply_all({a + k * a_stride, a_stride}, {b + k * b_stride, b_stride}, depth,
                 {block, columns}, arguments.rows, columns, queue, k > begin);
  }
}

}  // namespace recsys::cpu::RECSYS_ISA
