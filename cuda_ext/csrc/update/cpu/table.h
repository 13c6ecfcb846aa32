// SPDX-License-Identifier: Apache-2.0
// The update kernels of one instruction set, over ranges of work.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

// Sorted lookups are updated in chunks of this many, whatever the rows in them, so that the order
// of all sums depends on the lookups alone. Small against a batch, so that threads share hot rows;
// large against the partial sums, two rows, that a chunk leaves for its neighbours.
constexpr int64_t kUpdateChunk = 256;

struct UpdateKernels {
  // Chunks [begin, end) of sorted lookups: updates the rows that lie in one chunk, and leaves
  // partial sums of the others in the workspace.
  void (*update_chunks)(const UpdateArguments& arguments, int64_t begin, int64_t end);

  // All lookups of the rows that a thread owns, in their order.
  void (*sgd_unsorted)(const UpdateArguments& arguments, int owner, int num_owners);

  // Updates the rows that begin in chunks [begin, end) and reach into later ones.
  void (*update_crossing_rows)(const UpdateArguments& arguments, int64_t begin, int64_t end);
};

}  // namespace recsys::cpu
