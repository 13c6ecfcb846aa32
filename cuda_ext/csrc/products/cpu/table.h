// SPDX-License-Identifier: Apache-2.0
// The product kernel of one instruction set, over a block of rows.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

struct ProductKernels {
  // Sums the rows [begin, end), a block of kProductRows or the last, shorter one.
  void (*transposed_product)(const TransposedProductArguments& arguments, int64_t begin,
                             int64_t end);
};

}  // namespace recsys::cpu
