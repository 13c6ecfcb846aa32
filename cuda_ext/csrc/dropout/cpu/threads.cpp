// SPDX-License-Identifier: Apache-2.0
#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {

void run_dropout(const DropoutArguments& arguments, int64_t count) {
  constexpr int64_t kElementsPerTask = 32 << 10;
  const DropoutKernels& chosen = kernels().dropout;
  parallel_for(count, kElementsPerTask,
               [&](int64_t begin, int64_t end) { chosen.drop(arguments, begin, end); });
}

}  // namespace recsys::cpu
