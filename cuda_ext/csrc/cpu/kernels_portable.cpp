// SPDX-License-Identifier: Apache-2.0
#define RECSYS_ISA portable
#define RECSYS_VECTOR_BYTES 16
#include "../attention/cpu/kernels.h"
#include "../interaction/cpu/kernels.h"
#include "../lookup/cpu/kernels.h"
#include "../mlp/cpu/kernels.h"
#include "../products/cpu/kernels.h"
#include "../search/cpu/kernels.h"
#include "../update/cpu/kernels.h"
#include "kernel_table.h"

namespace recsys::cpu {

const KernelTable portable_kernels = {
    "portable",
    portable::kAttentionKernels,
    portable::kInteractionKernels,
    portable::kLookupKernels,
    portable::kMlpKernels,
    portable::kProductKernels,
    portable::kSearchKernels,
    portable::kUpdateKernels,
};

}  // namespace recsys::cpu
