// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile with -mavx2 -mfma -mf16c"
#endif

#define RECSYS_ISA avx2
#define RECSYS_VECTOR_BYTES 32
#include "../attention/cpu/kernels.h"
#include "../interaction/cpu/kernels.h"
#include "../lookup/cpu/kernels.h"
#include "../mlp/cpu/kernels.h"
#include "../products/cpu/kernels.h"
#include "../search/cpu/kernels.h"
#include "../update/cpu/kernels.h"
#include "kernel_table.h"

namespace recsys::cpu {

const KernelTable avx2_kernels = {
    "avx2",
    avx2::kAttentionKernels,
    avx2::kInteractionKernels,
    avx2::kLookupKernels,
    avx2::kMlpKernels,
    avx2::kProductKernels,
    avx2::kSearchKernels,
    avx2::kUpdateKernels,
};

}  // namespace recsys::cpu
#endif
