// SPDX-License-Identifier: Apache-2.0
// The kernels of a served DLRM for one instruction set: those that training uses too, and products
// with packed weights for many samples.
#pragma once

#include <cstdint>

#include "cuda_ext/csrc/interaction/interaction_arguments.h"
#include "cuda_ext/csrc/mlp/mlp_arguments.h"

namespace recsys::serve {

// A layer for many samples: output = weights x input + bias, and optionally ReLU. Matrices have one
// column per sample, so that the output of a layer is the input of the next.
struct PanelArguments {
  int num_inputs;
  int num_panels;
  int num_samples;      // rounded up to whole vectors; additional columns have arbitrary values
  int stride;           // stride of input and output
  const float* panels;  // [num_panels][num_inputs][panel_rows], zeros beyond the last output
  const float* bias;    // [num_panels x panel_rows]
  const float* input;   // [num_inputs][stride]
  float* output;        // [num_panels x panel_rows][stride]
  bool relu;
};

struct ServingKernels {
  const char* name;
  int panel_rows;  // outputs of a panel
  void (*panels)(const PanelArguments& arguments);
  // to[c][r] = from[r][c]
  void (*transpose)(const float* from, int num_rows, int num_columns, int from_stride, float* to,
                    int to_stride);
  void (*layer)(const LayerArguments& arguments, int64_t begin, int64_t end);
  void (*interaction)(const InteractionArguments& arguments, int64_t begin, int64_t end);
};

extern const ServingKernels portable_kernels;
#if defined(__x86_64__)
extern const ServingKernels avx2_kernels;
extern const ServingKernels avx512_kernels;
#endif

// Returns the best kernels that this CPU runs, or those named by RECSYS_CPU_KERNELS.
const ServingKernels& kernels();

}  // namespace recsys::serve
