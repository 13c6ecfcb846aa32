// SPDX-License-Identifier: Apache-2.0
// torch op of an MLP on few samples, on the CPU: a call for all layers.
#ifndef RECSYS_EMULATOR
#include "ops.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../registration.h"
#include "../tensor_arguments.h"
#include "kernels.h"

namespace recsys {
namespace {

constexpr const char* kOp = "mlp_forward";

void check_sizes(const std::vector<int64_t>& sizes, const Tensor& input, const Tensor& weights,
                 const Tensor& biases) {
  STD_TORCH_CHECK(sizes.size() >= 2, kOp, ": sizes must name the input and a layer");
  int64_t num_weights = 0;
  int64_t num_biases = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    STD_TORCH_CHECK(sizes[i] >= 1, kOp, ": sizes must be positive, got ", sizes[i]);
    if (i > 0) {
      num_weights += sizes[i] * padded_columns(sizes[i - 1]);
      num_biases += sizes[i];
    }
  }
  STD_TORCH_CHECK(input.dim() == 2 && input.size(1) == sizes[0], kOp, ": input must be [B, ",
                  sizes[0], "]");
  STD_TORCH_CHECK(weights.dim() == 1 && weights.numel() == num_weights, kOp,
                  ": weights must be packed, ", num_weights, " numbers for these sizes");
  STD_TORCH_CHECK(biases.dim() == 1 && biases.numel() == num_biases, kOp, ": biases must be ",
                  num_biases, " numbers for these sizes");
}

}  // namespace

Tensor mlp_forward(const Tensor& input, const Tensor& weights, const Tensor& biases,
                   std::vector<int64_t> sizes, bool final_relu) {
  check_contiguous(input, kOp, "input");
  check_contiguous(weights, kOp, "weights");
  check_contiguous(biases, kOp, "biases");
  check_sizes(sizes, input, weights, biases);
  const Dtype dtype = dtype_of(weights, kOp, "weights");
  const Dtype computed = dtype_of(input, kOp, "input");
  STD_TORCH_CHECK(dtype != Dtype::kFloat16, kOp, ": weights are float32, bfloat16 or float64");
  STD_TORCH_CHECK(computed == (dtype == Dtype::kFloat64 ? dtype : Dtype::kFloat32), kOp,
                  ": input must be float32, or float64 with weights of float64");
  STD_TORCH_CHECK(biases.scalar_type() == input.scalar_type(), kOp,
                  ": biases must have the type of the input");
  const int64_t batch = input.size(0);
  const int64_t bytes = bytes_of(computed);
  int64_t widest = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) widest = std::max(widest, padded_columns(sizes[i]));
  Tensor output = torch::stable::new_empty(input, {batch, sizes.back()});
  Tensor scratch = torch::stable::new_empty(input, {2, batch, widest});
  char* buffers[] = {static_cast<char*>(scratch.data_ptr()),
                     static_cast<char*>(scratch.data_ptr()) + batch * widest * bytes};

  // Zeroed padding: what an earlier use of the buffer left would count.
  const auto clear_padding = [&](char* buffer, int64_t columns) {
    const int64_t padded = padded_columns(columns);
    for (int64_t sample = 0; sample < batch; ++sample) {
      std::memset(buffer + (sample * padded + columns) * bytes, 0, (padded - columns) * bytes);
    }
  };
  const int64_t first = padded_columns(sizes[0]);
  for (int64_t sample = 0; sample < batch; ++sample) {
    std::memcpy(buffers[0] + sample * first * bytes,
                static_cast<const char*>(input.data_ptr()) + sample * sizes[0] * bytes,
                sizes[0] * bytes);
  }
  clear_padding(buffers[0], sizes[0]);

  const char* weight = static_cast<const char*>(weights.data_ptr());
  const char* bias = static_cast<const char*>(biases.data_ptr());
  for (size_t i = 1; i < sizes.size(); ++i) {
    const bool is_last = i + 1 == sizes.size();
    LayerArguments layer{};
    layer.dtype = dtype;
    layer.batch = batch;
    layer.num_columns = padded_columns(sizes[i - 1]);
    layer.num_rows = sizes[i];
    layer.weights = weight;
    layer.bias = bias;
    layer.input = buffers[(i + 1) % 2];
    layer.output = is_last ? static_cast<char*>(output.data_ptr()) : buffers[i % 2];
    layer.output_stride = is_last ? sizes[i] : padded_columns(sizes[i]);
    layer.relu = !is_last || final_relu;
    if (!is_last) clear_padding(buffers[i % 2], sizes[i]);
    if (batch > 0) cpu::run_layer(layer);
    weight += sizes[i] * layer.num_columns * bytes_of(dtype);
    bias += sizes[i] * bytes;
  }
  return output;
}

}  // namespace recsys

RECSYS_SCHEMAS(library) {
  library.def(
      "mlp_forward(Tensor input, Tensor weights, Tensor biases, int[] sizes, bool final_relu)"
      " -> Tensor");
}

RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CPU, library) {
  library.impl("mlp_forward", TORCH_BOX(&recsys::mlp_forward));
}
#endif  // RECSYS_EMULATOR
