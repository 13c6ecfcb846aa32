// SPDX-License-Identifier: Apache-2.0
// What an op hands to its kernels, on every backend: plain pointers and sizes, no torch.
//
// Letters: B batch, F tables, N = F + 1 vectors, D embedding dimension, R rows of the joint table,
// L lookups, G bags. All tensors are contiguous except for the batch strides named here, which
// count elements. The ops have checked every size and type before a kernel sees them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace recsys {

enum class Dtype : int32_t { kFloat32, kFloat16, kBFloat16, kFloat64 };

enum class IndexType : int32_t { kInt8, kInt16, kInt32, kInt64 };

// dot_interaction and gather_dot_interaction, forward and backward.
//
// Vector 0 of a sample is `first`; vectors 1..N-1 are `rest`, or the table rows that `rows` names,
// rounded to `dtype` before they are multiplied. Output row: first | strictly lower triangle,
// row-major (with the diagonal where self_interaction) | zeros up to `width`.
struct InteractionArguments {
  Dtype dtype;  // of first, rest, output and all gradients; sums are float32 (float64 for float64)
  int64_t batch;
  int32_t num_vectors;  // N, 1..64
  int32_t dim;          // D, 1..256
  int32_t width;        // columns of output and gradient
  bool self_interaction;
  bool allow_tf32;  // float32 may be multiplied as tf32 on tensor cores

  const void* first;  // [B, D]
  int64_t first_stride;
  const void* rest;  // [B, N - 1, D], null where rows are gathered
  int64_t rest_stride;
  const void* table;  // [R, D], null where nothing is gathered
  Dtype table_dtype;
  int64_t num_table_rows;
  const void* rows;    // [B, N - 1]
  IndexType row_type;  // kInt32 or kInt64

  void* output;          // [B, width], forward
  const void* gradient;  // [B, width], backward
  void* first_gradient;  // [B, D], backward: includes the gradient of the copied columns
  int64_t first_gradient_stride;
  void* rest_gradient;  // [B, N - 1, D], backward
  int64_t rest_gradient_stride;
};

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

// sort_rows: stable sort of rows, with the position that each came from.
struct SortArguments {
  const void* rows;  // [count]
  IndexType row_type;
  int64_t count;
  int64_t num_table_rows;
  void* sorted_rows;   // [count], same type as rows
  int32_t* positions;  // [count]
  void* workspace;     // as many bytes as the backend's sort_workspace_bytes asks for
};

// Room for the row optimizers of update_rules.h.
constexpr int kMaxRuleStates = 4;
constexpr int kMaxHyperparameters = 4;

// update_rows: applies row gradients to a table, in place.
//
// The gradient of a row is the sum over its lookups, in the order of their positions, of
// scale[l] * gradients[source[l]], in float32, times inverse_scale. update_rules.h has the rules.
struct UpdateArguments {
  int32_t rule;  // its position in UpdateRules
  void* table;   // [R, D] float32 or bfloat16
  Dtype table_dtype;
  int16_t* table_low;  // [R, D] low halves of a planar-split table (then table is bfloat16) or null
  int64_t num_table_rows;
  int32_t dim;
  float* state[kMaxRuleStates];  // the rule's row states [R], then its element states [R, D]
  const void* rows;              // [count], in ascending order for update_rows
  IndexType row_type;
  const int32_t* positions;  // [count]: lookup of each row; null where rows are not sorted
  int64_t count;
  const void* gradients;  // [count or source range, D]
  Dtype gradient_dtype;   // float32, float16 or bfloat16
  const int32_t* source;  // [count]: gradient row of each lookup; null: the lookup's own position
  const float* scale;     // [count] or null
  const float* lr;        // scalars in the backend's memory
  const float* step;
  const float* inverse_scale;  // or null for 1
  const bool* overflow;        // or null; true: nothing is written
  float weight_decay;
  float hyperparameters[kMaxHyperparameters];  // in the rule's order
  // 1 - each, rounded from float64: 1 - 0.999f is off by 1e-5 of itself.
  float one_minus_hyperparameters[kMaxHyperparameters];
  uint32_t rounding_seed;  // of the stochastic rounding of bfloat16 tables
  void* workspace;         // as many bytes as the backend's update_workspace_bytes asks for
};

// sgd_rows_unsorted: table[rows[l]] -= lr * inverse_scale * scale[l] * gradients[source[l]], one
// lookup after the other, without a sort. On the CPU in the order of the lookups, on a device in
// any order. float32 tables, no weight decay.
struct UnsortedSgdArguments {
  UpdateArguments update;
};

}  // namespace recsys
