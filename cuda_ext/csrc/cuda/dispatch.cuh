// SPDX-License-Identifier: Apache-2.0
// Host side of the embedding kernels: types chosen at run time, and the shape of a launch.
#pragma once

#include <cstdint>

#include "launch.cuh"
#include "row_vectors.cuh"

namespace recsys::kernels {

constexpr int kInvalidValue = cudaErrorInvalidValue;

// Stands for a type in the arguments of a generic function.
template <typename T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>) with the type that `dtype` names.
template <typename Function>
int with_float_type(Dtype dtype, const Function& f) {
  switch (dtype) {
    case Dtype::kFloat32:
      return f(TypeTag<float>{});
    case Dtype::kFloat16:
      return f(TypeTag<float16>{});
    case Dtype::kBFloat16:
      return f(TypeTag<bfloat16>{});
  }
  return kInvalidValue;
}

// Calls f(table type, other type).
template <typename Function>
int with_table_and_type(Dtype table, Dtype other, const Function& f) {
  return with_float_type(other, [&](auto other_type) {
    if (table == Dtype::kFloat32) {
      return f(TypeTag<float>{}, other_type);
    }
    return table == Dtype::kBFloat16 ? f(TypeTag<bfloat16>{}, other_type) : kInvalidValue;
  });
}

// Whether `width` elements at once may be read from all these rows of `dim` elements. Accepts null.
template <typename... Pointers>
bool fits_vectors(int32_t dim, int width, Pointers... pointers) {
  return dim % width == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Lanes that share a row of `dim` columns, `width` at once each.
inline int team_lanes(int32_t dim, int width) {
  int lanes = 1;
  while (lanes < kWarpLanes && lanes * width < dim) {
    lanes *= 2;
  }
  return lanes;
}

// Blocks for `count` pieces of work, `per_block` each.
inline int64_t blocks_for(int64_t count, int64_t per_block) {
  return (count + per_block - 1) / per_block;
}

}  // namespace recsys::kernels
