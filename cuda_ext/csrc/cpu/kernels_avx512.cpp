// SPDX-License-Identifier: Apache-2.0
// Compile with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX512DQ__)
#error "compile with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c"
#endif

#define RECSYS_ISA avx512
#define RECSYS_VECTOR_BYTES 64
#include "every_kernel.h"

const recsys::cpu::KernelTable recsys::cpu::avx512_kernels = avx512::kernel_table("avx512");
#endif
