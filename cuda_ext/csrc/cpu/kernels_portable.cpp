// SPDX-License-Identifier: Apache-2.0
#define RECSYS_ISA portable
#define RECSYS_VECTOR_BYTES 16
#if __has_include("embedding_kernels.h")
#include "embedding_kernels.h"
#endif
#include "interaction_kernels.h"

namespace recsys::cpu {

const KernelTable portable_kernels = {
    "portable",
    portable::kInteractionKernels,
#if __has_include("embedding_kernels.h")
    portable::kEmbeddingKernels,
#endif
};

}  // namespace recsys::cpu
