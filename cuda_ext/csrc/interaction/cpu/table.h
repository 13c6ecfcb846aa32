// SPDX-License-Identifier: Apache-2.0
// The interaction kernels of one instruction set, over ranges of work.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

// Each works on the samples [begin, end), so that threads share a batch.
struct InteractionKernels {
  void (*forward)(const InteractionArguments& arguments, int64_t begin, int64_t end);
  void (*backward)(const InteractionArguments& arguments, int64_t begin, int64_t end);
};

}  // namespace recsys::cpu
