// SPDX-License-Identifier: Apache-2.0
// Kernels of the embedding lookup: their arguments, for CPU and CUDA.
//
// What holds for all kernels is said in interaction/kernels.h.
//
// A table of R rows of D columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// joint_rows: ids of each feature -> row numbers of the joint table.
struct JointRowsArguments {
  const void* ids;  // [count], sample-major: id k belongs to feature (bag of k) % num_features
  IndexType id_type;
  int64_t count;
  int64_t num_features;
  const int64_t* offsets;      // [num_features + 1], offsets[f] is the first row of feature f
  const int64_t* bag_offsets;  // [num_bags + 1], or null where id k is bag k
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
struct GatherArguments {
  const void* table;  // [R, D]
  Dtype table_dtype;
  int64_t num_table_rows;
  int32_t dim;
  const void* rows;  // [count]
  IndexType row_type;
  int64_t count;
  void* output;  // [count, D]
  Dtype output_dtype;
};

// embedding_bag: output[g] = sum over bag g of scale[l] * table[rows[l]], summed in float32
// (float64 for a float64 table) in the order of l.
struct BagArguments {
  GatherArguments lookup;      // output is [num_bags, D]
  const int64_t* bag_offsets;  // [num_bags + 1]
  int64_t num_bags;
  const float* scale;  // [count] or null
};

// embedding_bag_scale_backward: output[l] = dot(gradient[source[l]], table[rows[l]]).
struct BagScaleGradientArguments {
  GatherArguments lookup;  // output: float32 [count]
  const void* gradient;    // [num_bags, D]
  Dtype gradient_dtype;
  const int32_t* source;  // [count]
};

}  // namespace recsys

namespace recsys::cpu {

void joint_rows(const JointRowsArguments& arguments);
void stack_ids(const StackIdsArguments& arguments);
void embedding_gather(const GatherArguments& arguments);
void embedding_bag(const BagArguments& arguments);
void embedding_bag_scale_backward(const BagScaleGradientArguments& arguments);

// Returns the position of the first row outside [0, num_table_rows), or -1.
int64_t find_bad_row(const void* rows, IndexType type, int64_t count, int64_t num_table_rows);

// The kernels of one instruction set, over ranges of work.
struct LookupKernels {
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
};

}  // namespace recsys::cpu

namespace recsys::device {

int joint_rows(const JointRowsArguments& arguments, void* stream);
int stack_ids(const StackIdsArguments& arguments, void* stream);
int embedding_gather(const GatherArguments& arguments, void* stream);
int embedding_bag(const BagArguments& arguments, void* stream);
int embedding_bag_scale_backward(const BagScaleGradientArguments& arguments, void* stream);

}  // namespace recsys::device
