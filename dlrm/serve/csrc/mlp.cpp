// SPDX-License-Identifier: Apache-2.0
#include "mlp.h"

#include <algorithm>

#include "cuda_ext/csrc/mlp/layers.h"

namespace recsys::serve {

Mlp::Mlp(const WeightsFile& file, const std::string& name, const std::vector<int64_t>& sizes,
         bool final_relu)
    : sizes_(sizes), final_relu_(final_relu) {
  int64_t count = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) count += padded_outputs(sizes[i + 1]) * sizes[i];
  weights_ = AlignedFloats(count);
  float* panels = weights_.data();
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const int64_t inputs = sizes[i];
    const int64_t outputs = sizes[i + 1];
    const std::string layer = name + ".layers." + std::to_string(i);
    const std::vector<float> weights = file.floats(layer + ".weight", {outputs, inputs});
    const std::vector<float> added = file.floats(layer + ".bias", {outputs});
    biases_.insert(biases_.end(), added.begin(), added.end());
    biases_.resize(biases_.size() + static_cast<size_t>(padded_outputs(outputs) - outputs));
    for (int64_t o = 0; o < outputs; ++o) {
      float* const panel = panels + o / kMlpPanel * kMlpPanel * inputs + o % kMlpPanel;
      for (int64_t k = 0; k < inputs; ++k) {
        panel[k * kMlpPanel] = weights[static_cast<size_t>(o * inputs + k)];
      }
    }
    panels += padded_outputs(outputs) * inputs;
  }
}

AlignedFloats Mlp::make_scratch() const {
  return AlignedFloats(2 * kBlockSamples * widest_output(sizes_.data(), num_layers()));
}

void Mlp::forward(int batch, const float* input, float* output, AlignedFloats& scratch) const {
  LayersArguments layers{};
  layers.dtype = Dtype::kFloat32;
  layers.batch = batch;
  layers.sizes = sizes_.data();
  layers.num_layers = num_layers();
  layers.weights = weights_.data();
  layers.biases = biases_.data();
  layers.input = input;
  layers.output = output;
  layers.scratch = scratch.data();
  layers.final_relu = final_relu_;
  forward_layers(layers, [&](const LayerArguments& layer) {
    kernels_.layer(layer, 0, num_panels(layer.num_outputs));
  });
}

}  // namespace recsys::serve
