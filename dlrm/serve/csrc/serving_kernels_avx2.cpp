// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)

#define RECSYS_ISA avx2
#define RECSYS_VECTOR_BYTES 32
#include "kernels_of_isa.h"

namespace recsys::serve {

const ServingKernels avx2_kernels = cpu::avx2::serving_kernels("avx2");

}  // namespace recsys::serve
#endif
