// SPDX-License-Identifier: Apache-2.0
// Runs the layers of an MLP one after the other; two buffers hold the activations between them.
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
  const void* weights;  // layer by layer, in panels
  const float* biases;  // layer by layer, padded to panels
  const float* input;   // [B, sizes[0]]
  float* output;        // [B, outputs of the last layer]
  float* scratch;       // [2, B, widest_output]
  bool final_relu;
};

// Returns the outputs of the widest layer, padded.
inline int64_t widest_output(const int64_t* sizes, int64_t num_layers) {
  return padded_outputs(*std::max_element(sizes + 1, sizes + num_layers + 1));
}

// Returns the arguments for samples [begin, end), whose scratch no other samples use.
inline LayersArguments of_samples(const LayersArguments& all, int64_t begin, int64_t end) {
  LayersArguments some = all;
  some.batch = end - begin;
  some.input += begin * all.sizes[0];
  some.output += begin * all.sizes[all.num_layers];
  some.scratch += 2 * begin * widest_output(all.sizes, all.num_layers);
  return some;
}

// Calls run(layer) for each layer.
template <typename Run>
void forward_layers(const LayersArguments& arguments, const Run& run) {
  const int64_t* const sizes = arguments.sizes;
  const int64_t batch = arguments.batch;
  if (batch == 0) return;
  float* const buffers[] = {
      arguments.scratch,
      arguments.scratch + batch * widest_output(sizes, arguments.num_layers),
  };
  const char* weights = static_cast<const char*>(arguments.weights);
  LayerArguments layer{};
  layer.dtype = arguments.dtype;
  layer.batch = batch;
  layer.bias = arguments.biases;
  layer.input = arguments.input;
  layer.input_stride = sizes[0];
  for (int64_t i = 1; i <= arguments.num_layers; ++i) {
    layer.num_inputs = sizes[i - 1];
    layer.num_outputs = sizes[i];
    layer.weights = weights;
    layer.output = buffers[i % 2];
    layer.output_stride = padded_outputs(sizes[i]);
    layer.relu = i < arguments.num_layers || arguments.final_relu;
    run(layer);
    weights += layer.output_stride * layer.num_inputs * bytes_of(arguments.dtype);
    layer.bias += layer.output_stride;
    layer.input = layer.output;
    layer.input_stride = layer.output_stride;
  }
  const int64_t last = sizes[arguments.num_layers];
  for (int64_t sample = 0; sample < batch; ++sample) {
    std::copy_n(layer.input + sample * layer.input_stride, last, arguments.output + sample * last);
  }
}

}  // namespace recsys

namespace recsys::cpu {

// Returns the samples that a thread computes by itself through all layers; 0 if all threads share
// each layer of all samples.
int64_t samples_per_task(int64_t batch);

void run_layers(const LayersArguments& arguments);           // on the thread that calls it
void run_layers_together(const LayersArguments& arguments);  // on all threads

}  // namespace recsys::cpu
