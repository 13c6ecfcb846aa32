// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {

void run_transposed_product(const TransposedProductArguments& arguments) {
  const ProductKernels& chosen = kernels().products;
  const int64_t blocks = (arguments.num_rows + kProductRows - 1) / kProductRows;
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kProductRows;
      const int64_t last = std::min(first + kProductRows, arguments.num_rows);
      chosen.transposed_product(arguments, first, last);
    }
  });
}

}  // namespace recsys::cpu
