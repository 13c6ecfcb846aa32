// SPDX-License-Identifier: Apache-2.0
// Types of numbers in tensors, as arguments of kernels.
#pragma once

#include <cstdint>

namespace recsys {

enum class Dtype : int32_t { kFloat32, kFloat16, kBFloat16 };

constexpr int64_t bytes_of(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

enum class IndexType : int32_t { kInt8, kInt16, kInt32, kInt64 };

// Calls body with a number of the type.
template <typename Body>
inline __attribute__((always_inline)) auto with_index_type(IndexType type, const Body& body) {
  switch (type) {
    case IndexType::kInt8:
      return body(int8_t{});
    case IndexType::kInt16:
      return body(int16_t{});
    case IndexType::kInt32:
      return body(int32_t{});
    default:
      return body(int64_t{});
  }
}

}  // namespace recsys
