// SPDX-License-Identifier: Apache-2.0
#include "choose.h"
#include "kernel_table.h"

namespace recsys::cpu {

const KernelTable& kernels() {
#if defined(__x86_64__)
  static const KernelTable& chosen =
      choose_kernels<KernelTable>({&avx512_kernels, &avx2_kernels, &portable_kernels});
#else
  static const KernelTable& chosen = choose_kernels<KernelTable>({&portable_kernels});
#endif
  return chosen;
}

const char* instruction_set() { return kernels().name; }

}  // namespace recsys::cpu
