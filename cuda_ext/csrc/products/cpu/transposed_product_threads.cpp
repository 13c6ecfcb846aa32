// SPDX-License-Identifier: Apache-2.0
#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {

void run_transposed_product(const TransposedProductArguments& arguments) {
  for_each_block(arguments.num_rows, kProductRows, [&](int64_t begin, int64_t end) {
    kernels().transposed_product(arguments, begin, end);
  });
}

}  // namespace recsys::cpu
