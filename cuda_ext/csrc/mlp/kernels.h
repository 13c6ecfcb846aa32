// SPDX-License-Identifier: Apache-2.0
// Kernel of an MLP on few samples: its arguments, for the CPU.
//
// An op hands it plain pointers and sizes and has checked them. With few samples an MLP is bound by
// reading its weights once; the kernel reads them in their order of memory and keeps what lies
// between the layers in the caches.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// Columns of a layer's input are padded with zeros to a multiple of this, in weights and
// activations alike, so that every vector of any instruction set is whole.
constexpr int64_t kMlpPadding = 32;

inline int64_t padded_columns(int64_t columns) {
  return (columns + kMlpPadding - 1) / kMlpPadding * kMlpPadding;
}

// One layer: output = input x weights^T + bias, and ReLU where asked for.
//
// Activations and biases are float32 (float64 with weights of float64), and so are sums.
struct LayerArguments {
  Dtype dtype;          // of the weights: float32, bfloat16 or float64
  int64_t batch;        // B
  int64_t num_columns;  // inputs, padded
  int64_t num_rows;     // outputs
  const void* weights;  // [num_rows, num_columns]
  const void* bias;     // [num_rows]
  const void* input;    // [B, num_columns], zeros in the padding
  void* output;         // [B, output_stride]
  int64_t output_stride;
  bool relu;
};

}  // namespace recsys

namespace recsys::cpu {

void run_layer(const LayerArguments& arguments);

}  // namespace recsys::cpu
