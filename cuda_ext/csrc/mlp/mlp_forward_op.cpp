// SPDX-License-Identifier: Apache-2.0
// torch op of an MLP without gradients, on the CPU: one call for all layers.
#ifndef RECSYS_EMULATOR
#include "../cpu/parallel.h"
#include "../ops.h"
#include "../registration.h"

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
      num_weights += padded_outputs(sizes[i]) * sizes[i - 1];
      num_biases += padded_outputs(sizes[i]);
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

PackedLayers::PackedLayers(const Tensor& input, const Tensor& weights, const Tensor& biases,
                           const std::vector<int64_t>& sizes, bool final_relu) {
  check_contiguous(input, kOp, "input");
  check_contiguous(weights, kOp, "weights");
  check_contiguous(biases, kOp, "biases");
  check_sizes(sizes, input, weights, biases);
  STD_TORCH_CHECK(input.scalar_type() == ScalarType::Float, kOp, ": input must be float32");
  STD_TORCH_CHECK(biases.scalar_type() == input.scalar_type(), kOp,
                  ": biases must have the type of the input");
  const int64_t batch = input.size(0);
  const int64_t num_layers = static_cast<int64_t>(sizes.size()) - 1;
  output = torch::stable::new_empty(input, {batch, sizes.back()});
  scratch_ = torch::stable::new_empty(input, {2, batch, widest_output(sizes.data(), num_layers)});
  arguments.dtype = dtype_of(weights, kOp, "weights");
  arguments.batch = batch;
  arguments.sizes = sizes.data();
  arguments.num_layers = num_layers;
  arguments.weights = weights.data_ptr();
  arguments.biases = static_cast<const float*>(biases.data_ptr());
  arguments.input = static_cast<const float*>(input.data_ptr());
  arguments.output = static_cast<float*>(output.data_ptr());
  arguments.scratch = static_cast<float*>(scratch_.data_ptr());
  arguments.final_relu = final_relu;
}

Tensor mlp_forward(const Tensor& input, const Tensor& weights, const Tensor& biases,
                   std::vector<int64_t> sizes, bool final_relu) {
  const PackedLayers layers(input, weights, biases, sizes, final_relu);
  const int64_t batch = input.size(0);
  if (const int64_t samples = cpu::samples_per_task(batch)) {
    cpu::for_each_block(batch, samples, [&](int64_t begin, int64_t end) {
      cpu::run_layers(of_samples(layers.arguments, begin, end));
    });
  } else {
    cpu::run_layers_together(layers.arguments);
  }
  return layers.output;
}

}  // namespace recsys

static const recsys::Op kOps[] = {
    {"mlp_forward(Tensor input, Tensor weights, Tensor biases, int[] sizes, bool final_relu)"
     " -> Tensor",
     TORCH_BOX(&recsys::mlp_forward)},
};

RECSYS_REGISTER_ON_CPU(kOps)
#endif  // RECSYS_EMULATOR
