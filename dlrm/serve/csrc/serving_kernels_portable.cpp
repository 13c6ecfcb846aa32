// SPDX-License-Identifier: Apache-2.0

#define RECSYS_ISA portable
#define RECSYS_VECTOR_BYTES 16
#include "kernels_of_isa.h"

namespace recsys::serve {

const ServingKernels portable_kernels = cpu::portable::serving_kernels("portable");

}  // namespace recsys::serve
