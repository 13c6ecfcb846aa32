// SPDX-License-Identifier: Apache-2.0
// The MLP kernel of one instruction set, over ranges of work.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

// Works on the outputs [begin, end) of all samples, so that threads share the weights.
struct MlpKernels {
  void (*layer)(const LayerArguments& arguments, int64_t begin, int64_t end);
};

}  // namespace recsys::cpu
