// SPDX-License-Identifier: Apache-2.0
// The attention kernels of one instruction set, for one sequence and head.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

struct AttentionKernels {
  // Bytes of scratch memory for sequences of up to so many keys.
  int64_t (*scratch_bytes)(const AttentionArguments& arguments, int64_t keys);
  void (*forward)(const AttentionArguments& arguments, int64_t sequence, int64_t head,
                  void* scratch);
  void (*backward)(const AttentionArguments& arguments, int64_t sequence, int64_t head,
                   void* scratch);
};

}  // namespace recsys::cpu
