// SPDX-License-Identifier: Apache-2.0
// Converts torch tensors to what kernels take, types and pointers, with the checks that keep a
// kernel inside its tensors. A failed check reaches Python as a RuntimeError.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <limits>
#include <optional>

#include "dtypes.h"

namespace recsys {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline Dtype dtype_of(ScalarType type, const char* op, const char* name) {
  switch (type) {
    case ScalarType::Float:
      return Dtype::kFloat32;
    case ScalarType::Half:
      return Dtype::kFloat16;
    case ScalarType::BFloat16:
      return Dtype::kBFloat16;
    default:
      STD_TORCH_CHECK(false, op, ": ", name,
                      " must be float32, float16 or bfloat16, its type number is ",
                      static_cast<int>(type));
  }
  return Dtype::kFloat32;
}

// Kernels take float16 only on a GPU: CPUs do not compute in it, and no program here needs it.
inline void check_float16([[maybe_unused]] ScalarType type, [[maybe_unused]] const Tensor& beside,
                          [[maybe_unused]] const char* op) {
#ifndef RECSYS_EMULATOR
  STD_TORCH_CHECK(type != ScalarType::Half || beside.is_cuda(), op, ": float16 is for GPUs");
#endif
}

inline Dtype dtype_of(const Tensor& tensor, const char* op, const char* name) {
  check_float16(tensor.scalar_type(), tensor, op);
  return dtype_of(tensor.scalar_type(), op, name);
}

inline IndexType index_type_of(ScalarType type, const char* op, const char* name) {
  switch (type) {
    case ScalarType::Char:
      return IndexType::kInt8;
    case ScalarType::Short:
      return IndexType::kInt16;
    case ScalarType::Int:
      return IndexType::kInt32;
    case ScalarType::Long:
      return IndexType::kInt64;
    default:
      STD_TORCH_CHECK(false, op, ": ", name, " must be int8, int16, int32 or int64, its type ",
                      "number is ", static_cast<int>(type));
  }
  return IndexType::kInt64;
}

inline IndexType row_type_of(const Tensor& rows, const char* op) {
  const IndexType type = index_type_of(rows.scalar_type(), op, "rows");
  STD_TORCH_CHECK(type == IndexType::kInt32 || type == IndexType::kInt64, op,
                  ": rows must be int32 or int64");
  return type;
}

inline int64_t integer_at(const void* data, IndexType type, int64_t position) {
  return with_index_type(type, [&](auto number) -> int64_t {
    return static_cast<const decltype(number)*>(data)[position];
  });
}

inline void check_same_device(const Tensor& tensor, const Tensor& other, const char* op,
                              const char* name) {
  STD_TORCH_CHECK(
      tensor.is_cuda() == other.is_cuda() && tensor.get_device_index() == other.get_device_index(),
      op, ": ", name, " is on another device");
}

inline void check_contiguous(const Tensor& tensor, const char* op, const char* name) {
  STD_TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous");
}

// Checks an optional tensor's device, layout, type and number of elements; gives its data.
template <typename T>
T* optional_data(const std::optional<Tensor>& tensor, const Tensor& beside, ScalarType type,
                 int64_t count, const char* op, const char* name) {
  if (!tensor.has_value()) {
    return nullptr;
  }
  check_same_device(*tensor, beside, op, name);
  check_contiguous(*tensor, op, name);
  STD_TORCH_CHECK(tensor->scalar_type() == type, op, ": ", name, " has the wrong type");
  STD_TORCH_CHECK(tensor->numel() == count, op, ": ", name, " must have ", count,
                  " elements, it has ", tensor->numel());
  return static_cast<T*>(tensor->data_ptr());
}

}  // namespace recsys
