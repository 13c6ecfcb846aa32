// SPDX-License-Identifier: Apache-2.0
// The embedding kernels over ranges of work: one table of them for each instruction set.
#pragma once

#include "../op_arguments.h"

namespace recsys::cpu {

// Sorted lookups are updated in chunks of this many, whatever the rows in them, so that the order
// of all sums depends on the lookups alone. Small against a batch, so that threads share hot rows;
// large against the partial sums, two rows, that a chunk leaves for its neighbours.
constexpr int64_t kUpdateChunk = 256;

struct EmbeddingKernels {
  // Positions [begin, end), or bags where there are bag offsets. Returns the smallest bad position,
  // or INT64_MAX.
  int64_t (*joint_rows)(const JointRowsArguments& arguments, int64_t begin, int64_t end);

  // Returns the first position in [begin, end) of a row outside the table, or INT64_MAX.
  int64_t (*first_bad_row)(const void* rows, IndexType type, int64_t num_table_rows, int64_t begin,
                           int64_t end);

  // Lookups [begin, end). `streaming`: the output is written around the caches.
  void (*gather)(const GatherArguments& arguments, bool streaming, int64_t begin, int64_t end);

  // Bags [begin, end).
  void (*bag)(const BagArguments& arguments, int64_t begin, int64_t end);

  // Lookups [begin, end).
  void (*bag_scale_gradient)(const BagScaleGradientArguments& arguments, int64_t begin,
                             int64_t end);

  // Chunks [begin, end) of sorted lookups: updates the rows that lie in one chunk, and leaves
  // partial sums of the others in the workspace.
  void (*update_chunks)(const UpdateArguments& arguments, int64_t begin, int64_t end);

  // All lookups of the rows that a thread owns, in their order.
  void (*sgd_unsorted)(const UpdateArguments& arguments, int owner, int num_owners);

  // Updates the rows that begin in chunks [begin, end) and reach into later ones.
  void (*update_crossing_rows)(const UpdateArguments& arguments, int64_t begin, int64_t end);
};

}  // namespace recsys::cpu
