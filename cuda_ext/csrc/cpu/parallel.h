// SPDX-License-Identifier: Apache-2.0
// Threads of the CPU kernels: torch's pool, so that torch.set_num_threads holds for them too.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>

namespace recsys::cpu {

// Calls body(begin, end) on ranges of [0, count), each of `grain` or more, on several threads.
template <typename Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count > 0) torch::stable::parallel_for(0, count, grain, body);
}

// Calls body(begin, end) on blocks of `size` of [0, count), the last one shorter, on several
// threads. Sums by blocks do not depend on the number of threads.
template <typename Body>
void for_each_block(int64_t count, int64_t size, const Body& body) {
  parallel_for((count + size - 1) / size, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      body(block * size, std::min((block + 1) * size, count));
    }
  });
}

// Returns the number of lookups, of rows of `dim` columns, that are worth a thread of their own.
inline int64_t lookups_per_task(int64_t dim) {
  constexpr int64_t kBytesPerTask = 64 << 10;
  return kBytesPerTask / (4 * std::clamp<int64_t>(dim, 1, 4096));
}

inline int num_threads() { return static_cast<int>(torch::stable::get_num_threads()); }

}  // namespace recsys::cpu
