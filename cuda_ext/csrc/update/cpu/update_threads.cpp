// SPDX-License-Identifier: Apache-2.0
// The updates on the CPU: divides the work of their kernels among threads.
#include <cstdint>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {

size_t update_workspace_bytes(const UpdateArguments& arguments) {
  const int64_t chunks = (arguments.count + kUpdateChunk - 1) / kUpdateChunk;
  return static_cast<size_t>(2 * chunks * arguments.dim) * sizeof(float);
}

void update_rows(const UpdateArguments& arguments) {
  if (arguments.overflow != nullptr && *arguments.overflow) {
    return;
  }
  const int64_t chunks = (arguments.count + kUpdateChunk - 1) / kUpdateChunk;
  parallel_for(chunks, 1,
               [&](int64_t begin, int64_t end) { kernels().update_chunks(arguments, begin, end); });
  parallel_for(chunks, 16, [&](int64_t begin, int64_t end) {
    kernels().update_long_rows(arguments, begin, end);
  });
}

void sgd_rows_unsorted(const UpdateArguments& arguments) {
  if (arguments.overflow != nullptr && *arguments.overflow) {
    return;
  }
  const bool is_small = arguments.count <= 2 * lookups_per_task(arguments.dim);
  const int owners = is_small ? 1 : num_threads();
  parallel_for(owners, 1, [&](int64_t begin, int64_t end) {
    for (int64_t owner = begin; owner < end; ++owner) {
      kernels().sgd_unsorted(arguments, static_cast<int>(owner), owners);
    }
  });
}

}  // namespace recsys::cpu
