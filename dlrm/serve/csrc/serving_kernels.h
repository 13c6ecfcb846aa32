// SPDX-License-Identifier: Apache-2.0
// The kernels of a served DLRM for one instruction set, the same as in training and evaluation.
#pragma once

#include <cstdint>

#include "cuda_ext/csrc/interaction/interaction_arguments.h"
#include "cuda_ext/csrc/mlp/mlp_arguments.h"

namespace recsys::serve {

struct ServingKernels {
  const char* name;
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
