// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of one instruction set, behind function pointers, and the choice among them.
#pragma once

#include <cstdint>

#include "../op_arguments.h"
#include "embedding_kernels_table.h"

namespace recsys::cpu {

// Each works on the samples [begin, end), so that threads share a batch.
struct InteractionKernels {
  void (*forward)(const InteractionArguments& arguments, int64_t begin, int64_t end);
  void (*backward)(const InteractionArguments& arguments, int64_t begin, int64_t end);
};

struct KernelTable {
  const char* name;
  InteractionKernels interaction;
  EmbeddingKernels embedding;
};

// Built from kernels_<name>.cpp, each with the compiler flags of its instruction set.
extern const KernelTable portable_kernels;
#if defined(__x86_64__)
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

// Returns the best kernels this CPU runs. RECSYS_CPU_KERNELS=portable|avx2|avx512 asks for others,
// to test them or to bisect a problem; std::runtime_error where the CPU lacks what it names.
const KernelTable& kernels();

}  // namespace recsys::cpu
