// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX512DQ__)
#error "compile with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c"
#endif

#define RECSYS_ISA avx512
#define RECSYS_VECTOR_BYTES 64
#include "../attention/cpu/kernels.h"
#include "../interaction/cpu/kernels.h"
#include "../lookup/cpu/kernels.h"
#include "../mlp/cpu/kernels.h"
#include "../products/cpu/kernels.h"
#include "../search/cpu/kernels.h"
#include "../update/cpu/kernels.h"
#include "kernel_table.h"

namespace recsys::cpu {

const KernelTable avx512_kernels = {
    "avx512",
    avx512::kAttentionKernels,
    avx512::kInteractionKernels,
    avx512::kLookupKernels,
    avx512::kMlpKernels,
    avx512::kProductKernels,
    avx512::kSearchKernels,
    avx512::kUpdateKernels,
};

}  // namespace recsys::cpu
#endif
