// SPDX-License-Identifier: Apache-2.0
// Kernels of an MLP: their arguments. An op passes checked plain pointers and sizes. Kernels for a
// device return a cudaError_t as int, 0 if the launch succeeded.
//
// On up to some hundred samples, on a CPU, an MLP without gradients reads its weights once, in
// memory order, and keeps the activations between the layers in the caches. In a training step on
// many samples a library computes the products; the work between two of them in backward is one
// pass here.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// Outputs of a panel. The weights of a layer are packed in panels, [num_inputs][kMlpPanel] each, so
// that all instruction sets read whole vectors in memory order; the last panel has zeros beyond the
// last output.
constexpr int64_t kMlpPanel = 32;

inline int64_t num_panels(int64_t outputs) { return (outputs + kMlpPanel - 1) / kMlpPanel; }
inline int64_t padded_outputs(int64_t outputs) { return num_panels(outputs) * kMlpPanel; }

// One layer: output = input x weights^T + bias, then ReLU if requested.
//
// Activations, biases and sums are float32.
struct LayerArguments {
  Dtype dtype;         // of the weights: float32 or bfloat16
  int64_t batch;       // B
  int64_t num_inputs;  // at least 1
  int64_t num_outputs;
  const void* weights;  // [num_panels][num_inputs][kMlpPanel]
  const float* bias;    // [num_panels x kMlpPanel]
  const float* input;   // [B, input_stride]
  int64_t input_stride;
  float* output;          // [B, output_stride], also beyond the last output of the last panel
  int64_t output_stride;  // at least num_panels x kMlpPanel
  bool relu;
};

// Gradient of a ReLU's input: 0 where output <= 0, else the gradient; with its sums over the batch,
// the bias' gradient, and on a CPU its transpose, which the product for the weights' gradient reads
// in memory order.
struct ReluBackwardArguments {
  Dtype dtype;           // of the matrices; sums are float32
  int64_t num_rows;      // B
  int64_t num_columns;   // N
  const void* gradient;  // [B, N]
  const void* output;    // [B, N], of the ReLU
  void* delta;           // [B, N]
  void* transposed;      // [N, B] or null
  float* block_sums;     // [blocks, N], one row for each block of kReluBackwardRows samples
  float* sums;           // [N]; on a CPU the caller adds up the blocks instead
};

// Samples of a task or block. Fixed, so that sums do not depend on the number of threads.
constexpr int64_t kReluBackwardRows = 128;

// A linear layer with one output, on a device: a product of a matrix with a vector, which the
// tensor cores do not speed up. Results are float32.
struct OutputLayerArguments {
  Dtype dtype;            // of x, weight, bias and delta
  int64_t num_rows;       // B
  int64_t num_columns;    // N
  const void* x;          // [B, N]
  const void* weight;     // [N]
  const void* bias;       // [1]; forward
  float* output;          // [B]; forward
  bool relu;              // backward: x is the output of a ReLU, delta the gradient of its input
  const float* gradient;  // [B], of the output; backward, as all below
  void* delta;            // [B, N]
  float* block_sums;      // [blocks of kOutputLayerRows samples, 2 N + 1]
  float* sums;            // [2 N + 1] over the samples: of delta, gradient * x, gradient
};

constexpr int64_t kOutputLayerRows = 128;

// Binary cross entropy of logits and its gradient, on a device, in float32.
struct CrossEntropyArguments {
  int64_t num_rows;     // B
  float factor;         // of both results
  const float* logits;  // [B]
  const float* labels;  // [B]
  float* gradient;      // [B]
  float* block_sums;    // [blocks of kCrossEntropyRows samples]
  float* sum;           // [1], of the losses
};

constexpr int64_t kCrossEntropyRows = 1024;

}  // namespace recsys

namespace recsys::cpu {

void relu_backward(const ReluBackwardArguments& arguments);

}  // namespace recsys::cpu

namespace recsys::device {

int relu_backward(const ReluBackwardArguments& arguments, void* stream);
int output_layer(const OutputLayerArguments& arguments, void* stream);
int output_layer_backward(const OutputLayerArguments& arguments, void* stream);
int cross_entropy(const CrossEntropyArguments& arguments, void* stream);

}  // namespace recsys::device
