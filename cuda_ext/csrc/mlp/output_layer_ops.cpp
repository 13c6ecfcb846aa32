// SPDX-License-Identifier: Apache-2.0
// torch ops of a linear layer with one output and of its loss: only on CUDA. A CPU's products of a
// matrix with a vector are already bound by memory.
#include <initializer_list>
#include <tuple>

#include "../registration.h"
#include "../run_kernel.h"
#include "mlp_arguments.h"

namespace recsys {
namespace {

Tensor new_floats(const Tensor& like, std::initializer_list<int64_t> sizes) {
  return torch::stable::new_empty(like, sizes, ScalarType::Float);
}

float* floats_of(const Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

int64_t blocks_of(int64_t rows, int64_t per_block) { return (rows + per_block - 1) / per_block; }

OutputLayerArguments arguments_of(const Tensor& x, const Tensor& weight, const char* op) {
  STD_TORCH_CHECK(x.dim() == 2, op, ": x must have two dimensions");
  check_contiguous(x, op, "x");
  OutputLayerArguments arguments{};
  arguments.dtype = dtype_of(x, op, "x");
  arguments.num_rows = x.size(0);
  arguments.num_columns = x.size(1);
  arguments.x = x.data_ptr();
  arguments.weight = optional_data<void>(weight, x, x.scalar_type(), x.size(1), op, "weight");
  return arguments;
}

Tensor output_layer(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const char* const op = "output_layer";
  OutputLayerArguments arguments = arguments_of(x, weight, op);
  arguments.bias = optional_data<void>(bias, x, x.scalar_type(), 1, op, "bias");
  Tensor output = new_floats(x, {arguments.num_rows, 1});
  arguments.output = floats_of(output);
  RECSYS_RUN_ON_DEVICE(output_layer, x, arguments);
  return output;
}

std::tuple<Tensor, Tensor> output_layer_backward(const Tensor& gradient, const Tensor& x,
                                                 const Tensor& weight, bool relu) {
  const char* const op = "output_layer_backward";
  OutputLayerArguments arguments = arguments_of(x, weight, op);
  arguments.gradient =
      optional_data<float>(gradient, x, ScalarType::Float, arguments.num_rows, op, "gradient");
  const int64_t num_sums = 2 * arguments.num_columns + 1;
  Tensor delta = torch::stable::new_empty(x, {arguments.num_rows, arguments.num_columns});
  Tensor block_sums = new_floats(x, {blocks_of(arguments.num_rows, kOutputLayerRows), num_sums});
  Tensor sums = new_floats(x, {num_sums});
  arguments.relu = relu;
  arguments.delta = delta.data_ptr();
  arguments.block_sums = floats_of(block_sums);
  arguments.sums = floats_of(sums);
  RECSYS_RUN_ON_DEVICE(output_layer_backward, x, arguments);
  return {delta, sums};
}

std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& labels,
                                         double factor) {
  const char* const op = "cross_entropy";
  CrossEntropyArguments arguments{};
  arguments.num_rows = logits.numel();
  arguments.factor = static_cast<float>(factor);
  arguments.logits =
      optional_data<float>(logits, logits, ScalarType::Float, arguments.num_rows, op, "logits");
  arguments.labels =
      optional_data<float>(labels, logits, ScalarType::Float, arguments.num_rows, op, "labels");
  Tensor sum = new_floats(logits, {});
  Tensor gradient = new_floats(logits, {arguments.num_rows});
  Tensor block_sums = new_floats(logits, {blocks_of(arguments.num_rows, kCrossEntropyRows)});
  arguments.gradient = floats_of(gradient);
  arguments.block_sums = floats_of(block_sums);
  arguments.sum = floats_of(sum);
  RECSYS_RUN_ON_DEVICE(cross_entropy, logits, arguments);
  return {sum, gradient};
}

}  // namespace
}  // namespace recsys

static const recsys::Op kOps[] = {
    {"output_layer(Tensor x, Tensor weight, Tensor bias) -> Tensor",
     TORCH_BOX(&recsys::output_layer)},
    {"output_layer_backward(Tensor gradient, Tensor x, Tensor weight, bool relu) -> (Tensor,"
     " Tensor)",
     TORCH_BOX(&recsys::output_layer_backward)},
    {"cross_entropy(Tensor logits, Tensor labels, float factor) -> (Tensor, Tensor)",
     TORCH_BOX(&recsys::cross_entropy)},
};

RECSYS_REGISTER_ON_DEVICE(kOps)
