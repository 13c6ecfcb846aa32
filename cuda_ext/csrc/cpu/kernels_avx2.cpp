// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile with -mavx2 -mfma -mf16c"
#endif

#define RECSYS_ISA avx2
#define RECSYS_VECTOR_BYTES 32
#include "embedding_kernels.h"
#include "interaction_kernels.h"

namespace recsys::cpu {

const KernelTable avx2_kernels = {
    "avx2",
    avx2::kInteractionKernels,
    avx2::kEmbeddingKernels,
};

}  // namespace recsys::cpu
#endif
