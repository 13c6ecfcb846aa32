// SPDX-License-Identifier: Apache-2.0
// torch ops of linear layers whose ReLU, and its gradient, come with the product: on CUDA alone.
#include <optional>
#include <string>
#include <tuple>

#include "../registration.h"
#include "../run_kernel.h"
#include "product.h"

#if defined(RECSYS_CUDA)

namespace recsys {
namespace {

// What NVIDIA recommends for its largest devices.
constexpr int64_t kWorkspaceBytes = 32 << 20;

constexpr int64_t kAlignment = 16;

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kAlignment == 0; }

void check_matrix(const Tensor& matrix, const Tensor& like, const char* op, const char* name) {
  STD_TORCH_CHECK(matrix.dim() == 2, op, ": ", name, " must have two dimensions");
  check_contiguous(matrix, op, name);
  check_same_device(matrix, like, op, name);
  STD_TORCH_CHECK(matrix.scalar_type() == like.scalar_type(), op, ": ", name,
                  " must have the type of the others");
}

// Queues a product; returns whether the library has one for it.
bool run(ReluProductArguments& arguments, const Tensor& like, const char* op) {
  if (arguments.rows == 0 || arguments.columns == 0 || arguments.inner == 0 ||
      !is_aligned(arguments.a) || !is_aligned(arguments.b) || !is_aligned(arguments.bias)) {
    return false;
  }
  STD_TORCH_CHECK(has_relu_products(), op, ": cuBLASLt is not loaded");
  Tensor workspace = torch::stable::new_empty(like, {kWorkspaceBytes}, ScalarType::Byte);
  arguments.workspace = workspace.data_ptr();
  arguments.workspace_bytes = kWorkspaceBytes;
  arguments.device = like.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(arguments.device);
  const ProductStatus status = multiply_with_relu(arguments, current_stream(like));
  STD_TORCH_CHECK(status != ProductStatus::kFailed, op, ": cuBLASLt refused the product");
  return status == ProductStatus::kDone;
}

// Returns the output [B, N] and the mask of its positive elements; without rows where the library
// has no such product.
std::tuple<Tensor, Tensor> linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                       bool allow_tf32) {
  const char* const op = "linear_relu";
  check_matrix(x, x, op, "x");
  check_matrix(weight, x, op, "weight");
  STD_TORCH_CHECK(weight.size(1) == x.size(1), op, ": weight must be [N, ", x.size(1), "]");
  ReluProductArguments arguments{};
  arguments.dtype = dtype_of(x, op, "x");
  arguments.allow_tf32 = allow_tf32;
  arguments.rows = x.size(0);
  arguments.inner = x.size(1);
  arguments.columns = weight.size(0);
  check_same_device(bias, x, op, "bias");
  check_contiguous(bias, op, "bias");
  STD_TORCH_CHECK(bias.numel() == arguments.columns && bias.scalar_type() == x.scalar_type(), op,
                  ": bias must be [", arguments.columns, "], of the type of x");
  arguments.mask_bytes = relu_mask_bytes(arguments.columns);
  Tensor output = torch::stable::new_empty(x, {arguments.rows, arguments.columns});
  Tensor mask =
      torch::stable::new_empty(x, {arguments.rows, arguments.mask_bytes}, ScalarType::Byte);
  arguments.a = x.data_ptr();
  arguments.b = weight.data_ptr();
  arguments.bias = bias.data_ptr();
  arguments.mask = mask.data_ptr();
  arguments.d = output.data_ptr();
  if (run(arguments, x, op)) {
    return {output, mask};
  }
  return {torch::stable::new_empty(x, {0, arguments.columns}),
          torch::stable::new_empty(x, {0, arguments.mask_bytes}, ScalarType::Byte)};
}

// Returns gradient x weight where the mask is set, else 0, and its sums over the rows; without rows
// where the library has no such product.
std::tuple<Tensor, Tensor> linear_relu_backward(const Tensor& gradient, const Tensor& weight,
                                                const Tensor& mask, bool allow_tf32) {
  const char* const op = "linear_relu_backward";
  check_matrix(gradient, gradient, op, "gradient");
  check_matrix(weight, gradient, op, "weight");
  STD_TORCH_CHECK(weight.size(0) == gradient.size(1), op, ": weight must be [", gradient.size(1),
                  ", N]");
  ReluProductArguments arguments{};
  arguments.dtype = dtype_of(gradient, op, "gradient");
  arguments.allow_tf32 = allow_tf32;
  arguments.backward = true;
  arguments.rows = gradient.size(0);
  arguments.inner = gradient.size(1);
  arguments.columns = weight.size(1);
  arguments.mask_bytes = relu_mask_bytes(arguments.columns);
  arguments.mask = optional_data<uint8_t>(mask, gradient, ScalarType::Byte,
                                          arguments.rows * arguments.mask_bytes, op, "mask");
  Tensor delta = torch::stable::new_empty(gradient, {arguments.rows, arguments.columns});
  Tensor sums = torch::stable::new_empty(gradient, {arguments.columns});
  arguments.a = gradient.data_ptr();
  arguments.b = weight.data_ptr();
  arguments.bias = sums.data_ptr();
  arguments.d = delta.data_ptr();
  if (run(arguments, gradient, op)) {
    return {delta, sums};
  }
  return {torch::stable::new_empty(gradient, {0, arguments.columns}), sums};
}

}  // namespace
}  // namespace recsys

#endif

RECSYS_SCHEMAS(library) {
  library.def("has_relu_products() -> bool");
  library.def(
      "linear_relu(Tensor x, Tensor weight, Tensor bias, bool allow_tf32) -> (Tensor, Tensor)");
  library.def(
      "linear_relu_backward(Tensor gradient, Tensor weight, Tensor mask, bool allow_tf32)"
      " -> (Tensor, Tensor)");
}

RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CompositeExplicitAutograd, library) {
  library.impl("has_relu_products", TORCH_BOX(&recsys::has_relu_products));
}

#if defined(RECSYS_CUDA)
RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CUDA, library) {
  library.impl("linear_relu", TORCH_BOX(&recsys::linear_relu));
  library.impl("linear_relu_backward", TORCH_BOX(&recsys::linear_relu_backward));
}
#endif
