// SPDX-License-Identifier: Apache-2.0
#include "serving_kernels.h"

#include "cuda_ext/csrc/cpu/choose.h"

namespace recsys::serve {

const ServingKernels& kernels() {
#if defined(__x86_64__)
  static const ServingKernels& chosen =
      cpu::choose_kernels<ServingKernels>({&avx512_kernels, &avx2_kernels, &portable_kernels});
#else
  static const ServingKernels& chosen = cpu::choose_kernels<ServingKernels>({&portable_kernels});
#endif
  return chosen;
}

}  // namespace recsys::serve
