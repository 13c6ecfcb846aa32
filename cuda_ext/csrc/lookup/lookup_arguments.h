// SPDX-License-Identifier: Apache-2.0
// Kernels of the embedding lookup: their arguments, for CPU and CUDA.
//
// See interaction/interaction_arguments.h for what all kernels have in common.
//
// A table of R rows of D columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../table_rows.h"

namespace recsys {

// joint_rows: ids of each feature -> row numbers of the joint table.
struct JointRowsArguments {
  const void* ids;  // [count], sample-major: id k belongs to feature (bag of k) % num_features
  IndexType id_type;
  int64_t count;
  int64_t num_features;
  const int64_t* offsets;      // [num_features + 1], offsets[f] is the first row of feature f
  const int64_t* bag_offsets;  // [num_bags + 1], or null if id k is bag k
  int64_t num_bags;
  bool hash_indices;   // id modulo the table size (result in [0, size)) instead of an error
  void* rows;          // [count]
  IndexType row_type;  // kInt32 or kInt64
  int64_t* bad;  // [1], in the backend's memory: smallest bad position; the caller sets INT64_MAX
};

// stack_ids: columns of ids, each of its own integer type -> ids side by side.
constexpr int kMaxStackedColumns = 64;  // of one call; they travel in the kernel's arguments
struct StackIdsArguments {
  const void* columns[kMaxStackedColumns];  // [batch] each
  IndexType column_types[kMaxStackedColumns];
  int32_t num_columns;
  int64_t batch;
  void* ids;       // [batch, num_columns], the first of them
  int64_t stride;  // ids of a sample in the whole result
  bool wide;       // ids are int64, else int32
};

// embedding_gather: output[l] = table[rows[l]], converted.
struct GatherArguments : TableRows<const void> {
  void* output;  // [count, D]
  Dtype output_dtype;
};

// embedding_bag: output[g] = sum over bag g of scale[l] * table[rows[l]], summed in float32 in the
// order of l.
struct BagArguments {
  GatherArguments lookup;      // output is [num_bags, D]
  const int64_t* bag_offsets;  // [num_bags + 1]
  int64_t num_bags;
  const float* scale;  // [count] or null
};

}  // namespace recsys

namespace recsys::cpu {

void joint_rows(const JointRowsArguments& arguments);
void stack_ids(const StackIdsArguments& arguments);
void embedding_gather(const GatherArguments& arguments);
void embedding_bag(const BagArguments& arguments);

// Returns the position of the first row outside [0, num_table_rows), or -1.
int64_t find_bad_row(const void* rows, IndexType type, int64_t count, int64_t num_table_rows);

}  // namespace recsys::cpu

namespace recsys::device {

int joint_rows(const JointRowsArguments& arguments, void* stream);
int stack_ids(const StackIdsArguments& arguments, void* stream);
int embedding_gather(const GatherArguments& arguments, void* stream);
int embedding_bag(const BagArguments& arguments, void* stream);

}  // namespace recsys::device
