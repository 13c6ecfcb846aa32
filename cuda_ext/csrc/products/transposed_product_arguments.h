// SPDX-License-Identifier: Apache-2.0
// Kernel of a product with a transposed matrix of many rows, for the CPU: its arguments.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// total = sum over the rows k of a[k]^T b[k]: a gradient of weights, a sum over many samples.
struct TransposedProductArguments {
  int64_t num_rows;  // K
  int64_t rows;      // M, columns of a
  int64_t columns;   // N, columns of b
  const float* a;    // [K, a_stride]
  int64_t a_stride;
  const float* b;  // [K, b_stride]
  int64_t b_stride;
  float* blocks;  // [K / kProductRows rounded up, M, N] sums of each block of rows
};

// Rows of a task. Fixed, so that sums do not depend on the number of threads.
constexpr int64_t kProductRows = 4096;

}  // namespace recsys

namespace recsys::cpu {

void run_transposed_product(const TransposedProductArguments& arguments);

}  // namespace recsys::cpu
