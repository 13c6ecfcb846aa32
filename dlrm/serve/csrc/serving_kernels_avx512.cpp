// SPDX-License-Identifier: Apache-2.0
// Compile with the flags of cuda_ext/csrc/cpu/kernels_avx512.cpp.
#if defined(__x86_64__)

#define RECSYS_ISA avx512
#define RECSYS_VECTOR_BYTES 64
#include "kernels_of_isa.h"

namespace recsys::serve {

const ServingKernels avx512_kernels = cpu::avx512::serving_kernels("avx512");

}  // namespace recsys::serve
#endif
