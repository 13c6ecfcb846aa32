// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX512DQ__)
#error "compile with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c"
#endif

#define RECSYS_ISA avx512
#define RECSYS_VECTOR_BYTES 64
#if __has_include("embedding_kernels.h")
#include "embedding_kernels.h"
#endif
#include "interaction_kernels.h"

namespace recsys::cpu {

const KernelTable avx512_kernels = {
    "avx512",
    avx512::kInteractionKernels,
#if __has_include("embedding_kernels.h")
    avx512::kEmbeddingKernels,
#endif
};

}  // namespace recsys::cpu
#endif
