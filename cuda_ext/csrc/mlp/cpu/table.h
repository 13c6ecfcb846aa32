// SPDX-License-Identifier: Apache-2.0
// The MLP kernels of one instruction set, over ranges of work.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

struct MlpKernels {
  // Works on the outputs [begin, end) of all samples, so that threads share the weights.
  void (*layer)(const LayerArguments& arguments, int64_t begin, int64_t end);
  // Works on the samples [begin, end), a block of kReluBackwardRows or the last, shorter one.
  void (*relu_backward)(const ReluBackwardArguments& arguments, int64_t begin, int64_t end);
};

}  // namespace recsys::cpu
