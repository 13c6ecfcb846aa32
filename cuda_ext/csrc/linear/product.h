// SPDX-License-Identifier: Apache-2.0
// Matrix products on a device that apply a ReLU and its gradient on the way.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// d [rows, columns] = a [rows, inner] x b, all with contiguous rows.
struct ReluProductArguments {
  Dtype dtype;
  bool allow_tf32;
  bool backward;
  int64_t rows;        // B
  int64_t columns;     // N
  int64_t inner;       // K
  const void* a;       // [B, K]
  const void* b;       // forward [N, K], used transposed; backward [K, N]
  void* bias;          // [N]; forward added, backward the sums of d over its rows
  void* mask;          // [B, mask_bytes], a bit of each element: whether the ReLU let it through
  int64_t mask_bytes;  // of a row
  void* d;
  void* workspace;
  int64_t workspace_bytes;
  int32_t device;
};

// Bytes of a row of the mask of N columns.
int64_t relu_mask_bytes(int64_t columns);

// Whether the library is here.
bool has_relu_products();

enum class ProductStatus { kDone, kNoAlgorithm, kFailed };

// Queues the product.
ProductStatus multiply_with_relu(const ReluProductArguments& arguments, void* stream);

}  // namespace recsys
