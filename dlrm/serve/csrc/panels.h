// SPDX-License-Identifier: Apache-2.0
// Products with packed weights, for the instruction set that includes this file.
#pragma once

#include "cuda_ext/csrc/cpu/tiles.h"
#include "cuda_ext/csrc/interaction/cpu/dot_interaction.h"
#include "cuda_ext/csrc/mlp/cpu/few_samples_layer.h"
#include "serving_kernels.h"

namespace recsys::cpu::RECSYS_ISA {

inline void panel_layer(const serve::PanelArguments& arguments) {
  PrefetchQueue queue;
  const int64_t panel_size = int64_t{arguments.num_inputs} * kTileRows;
  const StridedRows<const float> input = {arguments.input, arguments.stride};
  for (int panel = 0; panel < arguments.num_panels; ++panel) {
    const float* const weights = arguments.panels + panel * panel_size;
    const float* const bias = arguments.bias + panel * kTileRows;
    float* const output = arguments.output + int64_t{panel} * kTileRows * arguments.stride;
    // The weights come from the L3 cache or from memory, so they are prefetched one panel ahead.
    if (panel + 1 < arguments.num_panels) {
      queue.add(weights + panel_size, panel_size * int64_t{sizeof(float)});
    }
    multiply(
        Product<StridedRows<const float>>{
            {weights, kTileRows}, input, arguments.num_inputs, {output, arguments.stride}, queue},
        kTileRows, arguments.num_samples);
    queue.finish();
    for (int r = 0; r < kTileRows; ++r) {
      float* const row = output + r * arguments.stride;
      const Vector<float> added = broadcast(bias[r]);
      for (int s = 0; s < arguments.num_samples; s += kLanes<float>) {
        const Vector<float> sum = load(row + s) + added;
        // Keeps NaN, which is not below zero.
        store(row + s, arguments.relu ? (sum < Vector<float>{} ? Vector<float>{} : sum) : sum);
      }
    }
  }
}

inline void transpose_matrix(const float* from, int num_rows, int num_columns, int from_stride,
                             float* to, int to_stride) {
  constexpr int kSide = kLanes<float>;
  const int whole_rows = num_rows / kSide * kSide;
  const int whole_columns = num_columns / kSide * kSide;
  for (int r = 0; r < whole_rows; r += kSide) {
    for (int c = 0; c < whole_columns; c += kSide) {
      Vector<float> square[kSide];
      RECSYS_UNROLL for (int i = 0; i < kSide; ++i) {
        square[i] = load(from + int64_t{r + i} * from_stride + c);
      }
      transpose(square);
      RECSYS_UNROLL for (int i = 0; i < kSide; ++i) {
        store(to + int64_t{c + i} * to_stride + r, square[i]);
      }
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int c = r < whole_rows ? whole_columns : 0; c < num_columns; ++c) {
      to[int64_t{c} * to_stride + r] = from[int64_t{r} * from_stride + c];
    }
  }
}

constexpr serve::ServingKernels serving_kernels(const char* name) {
  return {name, kTileRows, panel_layer, transpose_matrix, layer_range, interaction_forward_range};
}

}  // namespace recsys::cpu::RECSYS_ISA
