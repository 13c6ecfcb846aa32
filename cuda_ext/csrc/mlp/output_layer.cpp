// SPDX-License-Identifier: Apache-2.0
// torch ops of a linear layer with one output and of its loss: on CUDA alone. A CPU has products of
// a matrix with a vector that are bound by memory too.
#include <tuple>

#include "../registration.h"
#include "../run_kernel.h"
#include "kernels.h"

#if defined(RECSYS_CUDA) || defined(RECSYS_EMULATOR)

namespace recsys {
namespace {

ScalarType sum_type_of(Dtype dtype) {
  return dtype == Dtype::kFloat64 ? ScalarType::Double : ScalarType::Float;
}

int64_t blocks_of(int64_t rows, int64_t per_block) { return (rows + per_block - 1) / per_block; }

void check_vector(const Tensor& vector, const Tensor& beside, ScalarType type, int64_t count,
                  const char* op, const char* name) {
  optional_data<void>(vector, beside, type, count, op, name);
}

OutputLayerArguments arguments_of(const Tensor& x, const Tensor& weight, const char* op) {
  STD_TORCH_CHECK(x.dim() == 2, op, ": x must have two dimensions");
  check_contiguous(x, op, "x");
  check_vector(weight, x, x.scalar_type(), x.size(1), op, "weight");
  OutputLayerArguments arguments{};
  arguments.dtype = dtype_of(x, op, "x");
  arguments.num_rows = x.size(0);
  arguments.num_columns = x.size(1);
  arguments.x = x.data_ptr();
  arguments.weight = weight.data_ptr();
  return arguments;
}

Tensor output_layer(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  OutputLayerArguments arguments = arguments_of(x, weight, "output_layer");
  check_vector(bias, x, x.scalar_type(), 1, "output_layer", "bias");
  Tensor output =
      torch::stable::new_empty(x, {arguments.num_rows, 1}, sum_type_of(arguments.dtype));
  arguments.bias = bias.data_ptr();
  arguments.output = output.data_ptr();
  RECSYS_RUN_ON_DEVICE(output_layer, x, arguments);
  return output;
}

std::tuple<Tensor, Tensor> output_layer_backward(const Tensor& gradient, const Tensor& x,
                                                 const Tensor& weight, bool relu) {
  const char* const op = "output_layer_backward";
  OutputLayerArguments arguments = arguments_of(x, weight, op);
  const ScalarType sum_type = sum_type_of(arguments.dtype);
  check_vector(gradient, x, sum_type, arguments.num_rows, op, "gradient");
  const int64_t num_sums = 2 * arguments.num_columns + 1;
  Tensor delta = torch::stable::new_empty(x, {arguments.num_rows, arguments.num_columns});
  Tensor block_sums = torch::stable::new_empty(
      x, {blocks_of(arguments.num_rows, kOutputLayerRows), num_sums}, sum_type);
  Tensor sums = torch::stable::new_empty(x, {num_sums}, sum_type);
  arguments.relu = relu;
  arguments.gradient = gradient.data_ptr();
  arguments.delta = delta.data_ptr();
  arguments.block_sums = block_sums.data_ptr();
  arguments.sums = sums.data_ptr();
  RECSYS_RUN_ON_DEVICE(output_layer_backward, x, arguments);
  return {delta, sums};
}

std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& labels,
                                         double factor) {
  const char* const op = "cross_entropy";
  CrossEntropyArguments arguments{};
  arguments.num_rows = logits.numel();
  check_vector(logits, logits, ScalarType::Float, arguments.num_rows, op, "logits");
  check_vector(labels, logits, ScalarType::Float, arguments.num_rows, op, "labels");
  Tensor sum = torch::stable::new_empty(logits, {});
  Tensor gradient = torch::stable::new_empty(logits, {arguments.num_rows});
  Tensor block_sums =
      torch::stable::new_empty(logits, {blocks_of(arguments.num_rows, kCrossEntropyRows)});
  arguments.factor = static_cast<float>(factor);
  arguments.logits = static_cast<const float*>(logits.data_ptr());
  arguments.labels = static_cast<const float*>(labels.data_ptr());
  arguments.gradient = static_cast<float*>(gradient.data_ptr());
  arguments.block_sums = static_cast<float*>(block_sums.data_ptr());
  arguments.sum = static_cast<float*>(sum.data_ptr());
  RECSYS_RUN_ON_DEVICE(cross_entropy, logits, arguments);
  return {sum, gradient};
}

}  // namespace
}  // namespace recsys

#endif

RECSYS_SCHEMAS(library) {
  library.def("output_layer(Tensor x, Tensor weight, Tensor bias) -> Tensor");
  library.def(
      "output_layer_backward(Tensor gradient, Tensor x, Tensor weight, bool relu)"
      " -> (Tensor, Tensor)");
  library.def("cross_entropy(Tensor logits, Tensor labels, float factor) -> (Tensor, Tensor)");
}

#if defined(RECSYS_CUDA) || defined(RECSYS_EMULATOR)
#if defined(RECSYS_EMULATOR)
RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CPU, library) {
#else
RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CUDA, library) {
#endif
  library.impl("output_layer", TORCH_BOX(&recsys::output_layer));
  library.impl("output_layer_backward", TORCH_BOX(&recsys::output_layer_backward));
  library.impl("cross_entropy", TORCH_BOX(&recsys::cross_entropy));
}
#endif
