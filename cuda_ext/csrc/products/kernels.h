// SPDX-License-Identifier: Apache-2.0
// Kernel of a product with a transposed matrix of many rows, for the CPU: its arguments.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// total = sum over the rows k of a[k]^T b[k]: a gradient of weights, a sum over many samples.
struct TransposedProductArguments {
  Dtype dtype;       // float32 or float64
  int64_t num_rows;  // K
  int64_t rows;      // M, columns of a
  int64_t columns;   // N, columns of b
  const void* a;     // [K, a_stride]
  int64_t a_stride;
  const void* b;  // [K, b_stride]
  int64_t b_stride;
  void* blocks;  // [K / kProductRows rounded up, M, N] sums of each block of rows
};

// Rows of a task. Fixed, so that sums do not depend on the number of threads.
constexpr int64_t kProductRows = 4096;

}  // namespace recsys

namespace recsys::cpu {

void run_transposed_product(const TransposedProductArguments& arguments);

// The kernels of one instruction set, over a block of rows.
struct ProductKernels {
  // Sums the rows [begin, end), a block of kProductRows or the last, shorter one.
  void (*transposed_product)(const TransposedProductArguments& arguments, int64_t begin,
                             int64_t end);
};

}  // namespace recsys::cpu
