// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile with -mavx2 -mfma -mf16c"
#endif

#define RECSYS_ISA avx2
#define RECSYS_VECTOR_BYTES 32
#include "every_kernel.h"

const recsys::cpu::KernelTable recsys::cpu::avx2_kernels = avx2::kernel_table("avx2");
#endif
