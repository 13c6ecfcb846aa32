// SPDX-License-Identifier: Apache-2.0
// Runs the layers of an MLP one after the other, on few samples; two buffers hold the activations
// between them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mlp_arguments.h"

namespace recsys {

// Packed layers, their input and their output.
struct LayersArguments {
  Dtype dtype;           // of the weights
  int64_t batch;         // B
  const int64_t* sizes;  // [num_layers + 1]: width of the input, then outputs of each layer
  int64_t num_layers;
  const void* weights;  // layer by layer, rows padded with zeros
  const float* biases;  // layer by layer
  const float* input;   // [B, sizes[0]]
  float* output;        // [B, outputs of the last layer]
  float* scratch;       // [2, B, widest padded input]
  bool final_relu;
};

// Returns the widest input of a layer, padded.
inline int64_t widest_input(const int64_t* sizes, int64_t num_layers) {
  int64_t widest = 0;
  for (int64_t i = 0; i < num_layers; ++i) widest = std::max(widest, padded_columns(sizes[i]));
  return widest;
}

// Calls run(layer) for each layer.
template <typename Run>
void forward_layers(const LayersArguments& arguments, const Run& run) {
  const int64_t* const sizes = arguments.sizes;
  const int64_t batch = arguments.batch;
  const int64_t widest = widest_input(sizes, arguments.num_layers);
  float* const buffers[] = {arguments.scratch, arguments.scratch + batch * widest};

  // Zeroes the padding: leftovers of an earlier use of the buffer would enter the sums.
  const auto clear_padding = [&](float* buffer, int64_t columns) {
    const int64_t padded = padded_columns(columns);
    for (int64_t sample = 0; sample < batch; ++sample) {
      std::fill(buffer + sample * padded + columns, buffer + (sample + 1) * padded, 0.0f);
    }
  };
  const int64_t first = padded_columns(sizes[0]);
  for (int64_t sample = 0; sample < batch; ++sample) {
    std::copy_n(arguments.input + sample * sizes[0], sizes[0], buffers[0] + sample * first);
  }
  clear_padding(buffers[0], sizes[0]);

  const char* weight = static_cast<const char*>(arguments.weights);
  const float* bias = arguments.biases;
  for (int64_t i = 1; i <= arguments.num_layers; ++i) {
    const bool is_last = i == arguments.num_layers;
    LayerArguments layer{};
    layer.dtype = arguments.dtype;
    layer.batch = batch;
    layer.num_columns = padded_columns(sizes[i - 1]);
    layer.num_rows = sizes[i];
    layer.weights = weight;
    layer.bias = bias;
    layer.input = buffers[(i + 1) % 2];
    layer.output = is_last ? arguments.output : buffers[i % 2];
    layer.output_stride = is_last ? sizes[i] : padded_columns(sizes[i]);
    layer.relu = !is_last || arguments.final_relu;
    if (!is_last) clear_padding(buffers[i % 2], sizes[i]);
    if (batch > 0) run(layer);
    weight += sizes[i] * layer.num_columns * bytes_of(arguments.dtype);
    bias += sizes[i];
  }
}

}  // namespace recsys
