// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile with -mavx2 -mfma -mf16c"
#endif

#define RECSYS_ISA avx2
#define RECSYS_VECTOR_BYTES 32
#if __has_include("embedding_kernels.h")
#include "embedding_kernels.h"
#endif
#include "interaction_kernels.h"

namespace recsys::cpu {

const KernelTable avx2_kernels = {
    "avx2",
    avx2::kInteractionKernels,
#if __has_include("embedding_kernels.h")
    avx2::kEmbeddingKernels,
#endif
};

}  // namespace recsys::cpu
#endif
