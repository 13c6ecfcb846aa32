// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of one instruction set, behind function pointers, and the choice among them.
#pragma once

#include "../attention/kernels.h"
#include "../interaction/kernels.h"
#include "../lookup/kernels.h"
#include "../mlp/kernels.h"
#include "../products/kernels.h"
#include "../search/kernels.h"
#include "../update/kernels.h"

namespace recsys::cpu {

struct KernelTable {
  const char* name;
  AttentionKernels attention;
  InteractionKernels interaction;
  LookupKernels lookup;
  MlpKernels mlp;
  ProductKernels products;
  SearchKernels search;
  UpdateKernels update;
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

// Has `kernels` return those of an instruction set, for tests; the best ones where `name` is null.
void use_kernels(const char* name);

}  // namespace recsys::cpu
