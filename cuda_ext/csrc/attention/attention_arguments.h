// SPDX-License-Identifier: Apache-2.0
// Kernels of attention over packed sequences, for the CPU: their arguments.
//
// An op passes checked plain pointers and sizes. Each head of a sequence is a task that fits the
// caches. No matrix of weights is kept: backward recomputes them from two numbers per query.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// Rows of a packed matrix: row r of a head starts at first + r * stride + head * E.
struct PackedRows {
  void* first;
  int64_t stride;
};

struct AttentionArguments {
  Dtype dtype;  // of the matrices; arithmetic is float32
  int64_t num_sequences;
  int64_t num_heads;             // H
  int64_t head_dim;              // E
  const int64_t* query_offsets;  // [S + 1]
  const int64_t* key_offsets;    // [S + 1]
  const int64_t* positions;      // [Q] of each query in its sequence; null: every token is a query
  bool causal;                   // no query sees a key after its own position
  PackedRows queries;            // [Q, H E]
  PackedRows keys;               // [N, H E]
  PackedRows values;             // [N, H E]
  PackedRows output;             // [Q, H E]; in backward its gradient
  float* maxima;                 // [Q, H] largest score of each query
  float* factors;                // [Q, H] 1 / sum of the exponentials
  // Random bytes, one for each weight; one below dropped_levels drops it. Those of a sequence begin
  // at draw_offsets, head by head, key by key. Null without dropout.
  const uint8_t* draws;
  const int64_t* draw_offsets;  // [S]
  int64_t dropped_levels;       // of 256
  PackedRows to_queries;        // gradients of backward, as above
  PackedRows to_keys;
  PackedRows to_values;
};

}  // namespace recsys

namespace recsys::cpu {

void run_attention(const AttentionArguments& arguments);
void run_attention_backward(const AttentionArguments& arguments);

}  // namespace recsys::cpu
