// SPDX-License-Identifier: Apache-2.0
#define RECSYS_ISA portable
#define RECSYS_VECTOR_BYTES 16
#include "every_kernel.h"

const recsys::cpu::KernelTable recsys::cpu::portable_kernels = portable::kernel_table("portable");
