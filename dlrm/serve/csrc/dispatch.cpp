// SPDX-License-Identifier: Apache-2.0
#include "cuda_ext/csrc/cpu/choose.h"
#include "kernels.h"

namespace recsys::serve {

const Kernels& kernels() {
#if defined(__x86_64__)
  static const Kernels& chosen =
      cpu::choose_kernels<Kernels>({&avx512_kernels, &avx2_kernels, &portable_kernels});
#else
  static const Kernels& chosen = cpu::choose_kernels<Kernels>({&portable_kernels});
#endif
  return chosen;
}

}  // namespace recsys::serve
