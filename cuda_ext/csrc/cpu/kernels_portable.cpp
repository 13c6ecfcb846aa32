// SPDX-License-Identifier: Apache-2.0
#define RECSYS_ISA portable
#define RECSYS_VECTOR_BYTES 16
#include "embedding_kernels.h"
#include "interaction_kernels.h"

namespace recsys::cpu {

const KernelTable portable_kernels = {
    "portable",
    portable::kInteractionKernels,
    portable::kEmbeddingKernels,
};

}  // namespace recsys::cpu
