// SPDX-License-Identifier: Apache-2.0
#include "mlp.h"

#include <algorithm>
#include <stdexcept>

#include "cuda_ext/csrc/mlp/layers.h"

namespace recsys::serve {

Mlp::Mlp(const WeightsFile& file, const std::string& name, const std::vector<int64_t>& sizes,
         bool final_relu)
    : sizes_(sizes), final_relu_(final_relu) {
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const int64_t inputs = sizes[i];
    const int64_t outputs = sizes[i + 1];
    const std::string layer = name + ".layers." + std::to_string(i);
    const std::vector<float> weights = file.floats(layer + ".weight", {outputs, inputs});
    const std::vector<float> added = file.floats(layer + ".bias", {outputs});
    const int64_t padded = padded_columns(inputs);
    const auto at = static_cast<int64_t>(rows_.size());
    rows_.resize(static_cast<size_t>(at + outputs * padded));
    for (int64_t o = 0; o < outputs; ++o) {
      std::copy_n(weights.begin() + o * inputs, inputs, rows_.begin() + at + o * padded);
    }
    biases_.insert(biases_.end(), added.begin(), added.end());

    const int64_t height = kernels_.panel_rows;
    const int64_t num_panels = (outputs + height - 1) / height;
    Panels panels{static_cast<int>(inputs), static_cast<int>(num_panels),
                  std::vector<float>(static_cast<size_t>(num_panels * height * inputs)),
                  std::vector<float>(static_cast<size_t>(num_panels * height))};
    std::copy(added.begin(), added.end(), panels.bias.begin());
    for (int64_t o = 0; o < outputs; ++o) {
      float* const panel = panels.weights.data() + o / height * height * inputs + o % height;
      for (int64_t k = 0; k < inputs; ++k) {
        panel[k * height] = weights[static_cast<size_t>(o * inputs + k)];
      }
    }
    panels_.push_back(std::move(panels));
  }
}

MlpScratch Mlp::make_scratch() const {
  int64_t widest = sizes_.front();
  for (const Panels& panels : panels_) {
    widest = std::max(widest, int64_t{panels.num_panels} * kernels_.panel_rows);
  }
  const auto num_layers = static_cast<int64_t>(panels_.size());
  return {AlignedFloats(2 * kFewSamples * widest_input(sizes_.data(), num_layers)),
          AlignedFloats(widest * kBlockSamples), AlignedFloats(widest * kBlockSamples)};
}

void Mlp::forward(int batch, const float* input, float* output, MlpScratch& scratch) const {
  if (batch <= kFewSamples) {
    forward_few(batch, input, output, scratch);
    return;
  }
  float* from = scratch.first.data();
  float* to = scratch.second.data();
  const auto width = static_cast<int>(sizes_.front());
  kernels_.transpose(input, batch, width, width, from, kBlockSamples);
  for (size_t i = 0; i < panels_.size(); ++i) {
    const Panels& panels = panels_[i];
    PanelArguments arguments{};
    arguments.num_inputs = panels.num_inputs;
    arguments.num_panels = panels.num_panels;
    arguments.num_samples = (batch + 15) / 16 * 16;
    arguments.stride = kBlockSamples;
    arguments.panels = panels.weights.data();
    arguments.bias = panels.bias.data();
    arguments.input = from;
    arguments.output = to;
    arguments.relu = i + 1 < panels_.size() || final_relu_;
    kernels_.panels(arguments);
    std::swap(from, to);
  }
  const auto outputs = static_cast<int>(sizes_.back());
  kernels_.transpose(from, outputs, batch, kBlockSamples, output, outputs);
}

void Mlp::forward_few(int batch, const float* input, float* output, MlpScratch& scratch) const {
  LayersArguments layers{};
  layers.dtype = Dtype::kFloat32;
  layers.batch = batch;
  layers.sizes = sizes_.data();
  layers.num_layers = static_cast<int64_t>(panels_.size());
  layers.weights = rows_.data();
  layers.biases = biases_.data();
  layers.input = input;
  layers.output = output;
  layers.scratch = scratch.few.data();
  layers.final_relu = final_relu_;
  forward_layers(layers,
                 [&](const LayerArguments& layer) { kernels_.layer(layer, 0, layer.num_rows); });
}

}  // namespace recsys::serve
