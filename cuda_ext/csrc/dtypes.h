// SPDX-License-Identifier: Apache-2.0
// Types of numbers in tensors, as kernels are told of them.
#pragma once

#include <cstdint>

namespace recsys {

enum class Dtype : int32_t { kFloat32, kFloat16, kBFloat16, kFloat64 };

constexpr int64_t bytes_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? 8 : dtype == Dtype::kFloat32 ? 4 : 2;
}

enum class IndexType : int32_t { kInt8, kInt16, kInt32, kInt64 };

}  // namespace recsys
