// SPDX-License-Identifier: Apache-2.0
// Kernels of the row update and its sort: their arguments, for CPU and CUDA.
//
// See interaction/interaction_arguments.h for what all kernels have in common.
//
// A table of R rows of D columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../table_rows.h"

namespace recsys {

// sort_rows: stable sort of rows, with the position that each came from.
struct SortArguments {
  const void* rows;  // [count]
  IndexType row_type;
  int64_t count;
  int64_t num_table_rows;
  void* sorted_rows;   // [count], same type as rows
  int32_t* positions;  // [count]
  void* workspace;     // as many bytes as the backend's sort_workspace_bytes returns
};

// Room for the row optimizers of rules.h.
constexpr int kMaxRuleStates = 4;
constexpr int kMaxHyperparameters = 4;

// update_rows: applies row gradients to a table, in place.
//
// The gradient of a row is the sum over its lookups, in the order of their positions, of
// scale[l] * gradients[source[l]], in float32, times inverse_scale. See rules.h.
struct UpdateArguments : TableRows<void> {  // rows: in ascending order for update_rows
  int32_t rule;                             // its position in UpdateRules
  float* state[kMaxRuleStates];  // the rule's row states [R], then its element states [R, D]
  const int32_t* positions;      // [count]: lookup of each row; null if rows are not sorted
  const void* gradients;         // [count or source range, D]
  Dtype gradient_dtype;          // float32, float16 or bfloat16
  const int32_t* source;  // [count]: gradient row of each lookup; null: the lookup's own position
  const float* scale;     // [count] or null
  const float* lr;        // scalars in the backend's memory
  const float* step;
  const float* inverse_scale;  // or null for 1
  const bool* overflow;        // or null; true: nothing is written
  float weight_decay;
  float hyperparameters[kMaxHyperparameters];  // in the rule's order
  // 1 - each, rounded from float64: 1 - 0.999f has a relative error of 1e-5.
  float one_minus_hyperparameters[kMaxHyperparameters];
  uint32_t rounding_seed;  // of the stochastic rounding of bfloat16 tables
  void* workspace;         // as many bytes as the backend's update_workspace_bytes returns
};

}  // namespace recsys

namespace recsys::cpu {

size_t sort_workspace_bytes(const SortArguments& arguments);
void sort_rows(const SortArguments& arguments);
size_t update_workspace_bytes(const UpdateArguments& arguments);
void update_rows(const UpdateArguments& arguments);
// table[rows[l]] -= lr * inverse_scale * scale[l] * gradients[source[l]], lookup by lookup in
// order, without a sort. float32 tables, no weight decay.
void sgd_rows_unsorted(const UpdateArguments& arguments);

// Sorted lookups are updated in chunks of this many, and a row is summed in parts of as many, so
// that the order of its sum depends only on its lookups. Small compared with a batch, so that
// threads share hot rows; large compared with the two rows of partial sums that a chunk leaves for
// its neighbours.
constexpr int64_t kUpdateChunk = 256;

}  // namespace recsys::cpu

namespace recsys::device {

size_t sort_workspace_bytes(const SortArguments& arguments);
int sort_rows(const SortArguments& arguments, void* stream);
size_t update_workspace_bytes(const UpdateArguments& arguments);
int update_rows(const UpdateArguments& arguments, void* stream);

}  // namespace recsys::device
