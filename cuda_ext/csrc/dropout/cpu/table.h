// SPDX-License-Identifier: Apache-2.0
// The dropout kernel of one instruction set, over a range of elements.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

struct DropoutKernels {
  void (*drop)(const DropoutArguments& arguments, int64_t begin, int64_t end);
};

}  // namespace recsys::cpu
