// SPDX-License-Identifier: Apache-2.0
// torch op of a ReLU's backward as a linear layer needs it.
#include <tuple>

#include "../block_sums.h"
#include "../registration.h"
#include "../run_kernel.h"
#include "mlp_arguments.h"

namespace recsys {
namespace {

constexpr const char* kOp = "relu_backward";

std::tuple<Tensor, Tensor, Tensor> relu_backward(const Tensor& gradient, const Tensor& output,
                                                 bool transpose) {
  check_contiguous(gradient, kOp, "gradient");
  check_contiguous(output, kOp, "output");
  check_same_device(output, gradient, kOp, "output");
  STD_TORCH_CHECK(!(transpose && runs_on_device(gradient)), kOp,
                  ": only a CPU makes the transpose");
  STD_TORCH_CHECK(gradient.dim() == 2 && output.dim() == 2 && gradient.size(0) == output.size(0) &&
                      gradient.size(1) == output.size(1),
                  kOp, ": gradient and output must be [B, N], of the same size");
  STD_TORCH_CHECK(gradient.scalar_type() == output.scalar_type(), kOp,
                  ": gradient and output must have the same type");
  ReluBackwardArguments arguments{};
  arguments.dtype = dtype_of(gradient, kOp, "gradient");
  arguments.num_rows = gradient.size(0);
  arguments.num_columns = gradient.size(1);
  arguments.gradient = gradient.data_ptr();
  arguments.output = output.data_ptr();
  Tensor delta = torch::stable::new_empty(gradient, {arguments.num_rows, arguments.num_columns});
  Tensor transposed = torch::stable::new_empty(
      gradient, {transpose ? arguments.num_columns : 0, transpose ? arguments.num_rows : 0});
  const int64_t blocks = (arguments.num_rows + kReluBackwardRows - 1) / kReluBackwardRows;
  Tensor block_sums =
      torch::stable::new_empty(gradient, {blocks, arguments.num_columns}, ScalarType::Float);
  Tensor sums = torch::stable::new_empty(gradient, {arguments.num_columns}, ScalarType::Float);
  arguments.delta = delta.data_ptr();
  arguments.transposed = transpose ? transposed.data_ptr() : nullptr;
  arguments.block_sums = static_cast<float*>(block_sums.data_ptr());
  arguments.sums = static_cast<float*>(sums.data_ptr());
  RECSYS_RUN(relu_backward, gradient, arguments);
  if (!runs_on_device(gradient)) {
    add_blocks(block_sums, sums);
  }
  return {delta, transposed, sums};
}

}  // namespace
}  // namespace recsys

static const recsys::Op kOps[] = {
    {"relu_backward(Tensor gradient, Tensor output, bool transpose) -> (Tensor, Tensor, Tensor)",
     TORCH_BOX(&recsys::relu_backward)},
};

RECSYS_REGISTER(kOps)
