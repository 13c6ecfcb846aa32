// SPDX-License-Identifier: Apache-2.0
// Attention of one head of a sequence, forward and backward, over blocks of queries.
//
// Weights are stored transposed, a row for each key, so that the softmax of a query runs down a
// lane and no sum crosses lanes.
#pragma once

#include "../../cpu/tiles.h"
#include "../../cpu/vector.h"
#include "../attention_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

// Queries of a block, in whole vectors: with 200 keys, its weights and their gradients take 100 KiB
// of float32.
constexpr int kQueryBlock = 64;

// Exponentials of numbers of at most zero; those below the smallest normal number are zero.
//
// Source of the method: Cody and Waite 1980, "Software Manual for the Elementary Functions", with
// the Taylor series of exp on [-ln2/2, ln2/2] to the seventh power.
inline Vector<float> exponential(Vector<float> x) {
  constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLowest = -87.3f;
  const Vector<float> clamped = x < kLowest ? broadcast(kLowest) : x;
  const Vector<float> shifted = clamped * 1.44269504088896341f + kShifter;
  const Vector<float> power = shifted - kShifter;
  Vector<float> rest = clamped - power * 0.693359375f;
  rest -= power * -2.12194440e-4f;
  Vector<float> sum = rest * (1.0f / 5040) + 1.0f / 720;
  sum = sum * rest + 1.0f / 120;
  sum = sum * rest + 1.0f / 24;
  sum = sum * rest + 1.0f / 6;
  sum = sum * rest + 0.5f;
  sum = sum * rest + 1.0f;
  sum = sum * rest + 1.0f;
  using Bits = Vector<int32_t>;
  const Bits scale = ((Bits)shifted - (Bits)broadcast(kShifter) + 127) << 23;
  return x < kLowest ? Vector<float>{} : sum * (Vector<float>)scale;
}

constexpr int64_t whole_vectors(int64_t count) {
  return (count + kLanes<float> - 1) / kLanes<float> * kLanes<float>;
}

// Scratch memory of a task, large enough for backward.
struct AttentionScratch {
  AttentionScratch(int64_t num_keys, int64_t dim, float* memory)
      : keys(static_cast<int>(whole_vectors(num_keys))),
        columns(static_cast<int>(whole_vectors(dim))),
        next_(memory) {}

  float* take(int64_t rows, int64_t width) {
    float* const taken = next_;
    next_ += rows * width;
    return taken;
  }

  static int64_t elements(int64_t num_keys, int64_t dim) {
    const int64_t keys = whole_vectors(num_keys);
    const int64_t columns = whole_vectors(dim);
    return 6 * keys * columns + 4 * keys * kQueryBlock + 4 * kQueryBlock * columns;
  }

  int keys;     // padded
  int columns;  // padded

 private:
  float* next_;
};

// Copies rows of a head, times a factor, to rows of whole vectors, zeros in the padding and in the
// rows up to `padded_rows`.
template <typename Stored>
void copy_rows(const PackedRows& rows, int64_t first, int64_t count, int64_t head, int64_t dim,
               float factor, float* to, int64_t width, int64_t padded_rows) {
  const Stored* from = static_cast<const Stored*>(rows.first) + first * rows.stride + head * dim;
  for (int64_t r = 0; r < padded_rows; ++r, from += rows.stride, to += width) {
    int64_t d = 0;
    if (r < count) {
      for (; d + kLanes<float> <= dim; d += kLanes<float>) store(to + d, load(from + d) * factor);
      for (; d < dim; ++d) to[d] = widen(from[d]) * factor;
    }
    for (; d < width; ++d) to[d] = 0;
  }
}

// Copies rows of whole vectors to rows of a head, times a factor.
template <typename Stored>
void write_rows(const float* from, int64_t width, const PackedRows& rows, int64_t first,
                int64_t count, int64_t head, int64_t dim, float factor) {
  Stored* to = static_cast<Stored*>(rows.first) + first * rows.stride + head * dim;
  for (int64_t r = 0; r < count; ++r, to += rows.stride, from += width) {
    int64_t d = 0;
    for (; d + kLanes<float> <= dim; d += kLanes<float>) store(to + d, load(from + d) * factor);
    for (; d < dim; ++d) narrow(from[d] * factor, to[d]);
  }
}

// Transposes [rows, columns] of whole squares.
inline void transpose_matrix(const float* from, int64_t rows, int64_t columns, int64_t stride,
                             float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += kLanes<float>) {
    for (int64_t c = 0; c < columns; c += kLanes<float>) {
      Vector<float> square[kLanes<float>];
      RECSYS_UNROLL for (int i = 0; i < kLanes<float>; ++i) {
        square[i] = load(from + (r + i) * stride + c);
      }
      transpose(square);
      RECSYS_UNROLL for (int i = 0; i < kLanes<float>; ++i) {
        store(to + (c + i) * to_stride + r, square[i]);
      }
    }
  }
}

// A block of queries of a sequence and head.
struct QueryBlock {
  QueryBlock(const AttentionArguments& arguments, int64_t sequence, int64_t head, int64_t begin)
      : arguments(arguments) {
    const int64_t num_keys = arguments.key_offsets[sequence + 1] - arguments.key_offsets[sequence];
    first = arguments.query_offsets[sequence] + begin;
    const int64_t end = arguments.query_offsets[sequence + 1];
    all_queries = end - arguments.query_offsets[sequence];
    count = end - first < kQueryBlock ? end - first : kQueryBlock;
    columns = whole_vectors(count);
    keys_seen = num_keys;
    keys_by_all = num_keys;
    if (arguments.causal) {
      keys_seen = 0;
      for (int64_t q = 0; q < kQueryBlock; ++q) last_key[q] = 0;
      for (int64_t q = 0; q < count; ++q) {
        const int64_t last = arguments.positions ? arguments.positions[first + q] : begin + q;
        if (last + 1 > keys_seen) keys_seen = last + 1;
        if (last + 1 < keys_by_all) keys_by_all = last + 1;
        last_key[q] = static_cast<float>(last);
      }
    }
    if (arguments.draws != nullptr) {
      draws = arguments.draws + arguments.draw_offsets[sequence] + head * all_queries * num_keys +
              begin;
    }
  }

  // 1 / (1 - p) where a weight is kept, 0 where it is dropped.
  RECSYS_INLINE Vector<float> kept(int64_t key, int64_t column) const {
    const float levels = static_cast<float>(arguments.dropped_levels);
    return kept_factors(draws + key * all_queries + column, levels, 256.0f / (256.0f - levels));
  }

  // Excludes keys that a query does not see from its softmax.
  RECSYS_INLINE Vector<float> hide(Vector<float> scores, int64_t key, int64_t column) const {
    if (key < keys_by_all) return scores;
    return load(last_key + column) >= static_cast<float>(key) ? scores : broadcast(kHidden);
  }

  static constexpr float kHidden = -__builtin_huge_val();

  const AttentionArguments& arguments;
  int64_t first;                // query
  int64_t all_queries;          // of the sequence
  int64_t count;                // of the block
  int64_t columns;              // of its weights: count in whole vectors
  int64_t keys_seen;            // by any query
  int64_t keys_by_all;          // seen by every query
  float last_key[kQueryBlock];  // last key that each query sees
  const uint8_t* draws = nullptr;
};

template <typename Stored>
void attention_forward(const AttentionArguments& arguments, int64_t sequence, int64_t head,
                       void* memory) {
  const int64_t dim = arguments.head_dim;
  const float scale = 1.0f / static_cast<float>(__builtin_sqrt(static_cast<double>(dim)));
  const int64_t num_keys = arguments.key_offsets[sequence + 1] - arguments.key_offsets[sequence];
  const int64_t num_queries =
      arguments.query_offsets[sequence + 1] - arguments.query_offsets[sequence];
  if (num_queries == 0 || num_keys == 0) return;
  AttentionScratch scratch(num_keys, dim, static_cast<float*>(memory));
  const int width = scratch.columns;
  float* const keys = scratch.take(scratch.keys, width);
  float* const values = scratch.take(scratch.keys, width);
  float* const keys_transposed = scratch.take(width, scratch.keys);
  float* const weights = scratch.take(scratch.keys, kQueryBlock);
  float* const queries = scratch.take(kQueryBlock, width);
  float* const queries_transposed = scratch.take(width, kQueryBlock);
  float* const mixed = scratch.take(kQueryBlock, width);
  PrefetchQueue queue;
  const int64_t first_key = arguments.key_offsets[sequence];
  copy_rows<Stored>(arguments.keys, first_key, num_keys, head, dim, 1.0f, keys, width,
                    scratch.keys);
  copy_rows<Stored>(arguments.values, first_key, num_keys, head, dim, 1.0f, values, width,
                    scratch.keys);
  transpose_matrix(keys, scratch.keys, width, width, keys_transposed, scratch.keys);
  for (int64_t begin = 0; begin < num_queries; begin += kQueryBlock) {
    const QueryBlock block(arguments, sequence, head, begin);
    copy_rows<Stored>(arguments.queries, block.first, block.count, head, dim, scale, queries, width,
                      block.columns);
    transpose_matrix(queries, block.columns, width, width, queries_transposed, kQueryBlock);
    multiply_all({keys_transposed, scratch.keys}, {queries_transposed, kQueryBlock}, dim,
                 {weights, kQueryBlock}, block.keys_seen, block.columns, queue);
    for (int64_t column = 0; column < block.columns; column += kLanes<float>) {
      Vector<float> top = broadcast(QueryBlock::kHidden);
      for (int64_t key = 0; key < block.keys_seen; ++key) {
        float* const at = weights + key * kQueryBlock + column;
        const Vector<float> score = block.hide(load(at), key, column);
        store(at, score);
        top = score <= top ? top : score;  // a NaN replaces any maximum
      }
      Vector<float> sum = {};
      for (int64_t key = 0; key < block.keys_seen; ++key) {
        float* const at = weights + key * kQueryBlock + column;
        const Vector<float> power = exponential(load(at) - top);
        sum += power;
        store(at, block.draws == nullptr ? power : power * block.kept(key, column));
      }
      for (int lane = 0; lane < kLanes<float> && column + lane < block.count; ++lane) {
        const int64_t at = (block.first + column + lane) * arguments.num_heads + head;
        arguments.maxima[at] = top[lane];
        arguments.factors[at] = 1.0f / sum[lane];
      }
    }
    multiply_all({weights, kQueryBlock}, {values, width}, block.keys_seen, {mixed, width},
                 block.count, width, queue);
    for (int64_t q = 0; q < block.count; ++q) {
      const float factor = static_cast<const float*>(
          arguments.factors)[(block.first + q) * arguments.num_heads + head];
      write_rows<Stored>(mixed + q * width, width, arguments.output, block.first + q, 1, head, dim,
                         factor);
    }
  }
}

template <typename Stored>
void attention_backward(const AttentionArguments& arguments, int64_t sequence, int64_t head,
                        void* memory) {
  const int64_t dim = arguments.head_dim;
  const float scale = 1.0f / static_cast<float>(__builtin_sqrt(static_cast<double>(dim)));
  const int64_t first_key = arguments.key_offsets[sequence];
  const int64_t num_keys = arguments.key_offsets[sequence + 1] - first_key;
  const int64_t num_queries =
      arguments.query_offsets[sequence + 1] - arguments.query_offsets[sequence];
  if (num_keys == 0) return;
  AttentionScratch scratch(num_keys, dim, static_cast<float*>(memory));
  const int width = scratch.columns;
  float* const keys = scratch.take(scratch.keys, width);
  float* const values = scratch.take(scratch.keys, width);
  float* const keys_transposed = scratch.take(width, scratch.keys);
  float* const values_transposed = scratch.take(width, scratch.keys);
  float* const to_keys = scratch.take(scratch.keys, width);
  float* const to_values = scratch.take(scratch.keys, width);
  float* const weights = scratch.take(scratch.keys, kQueryBlock);
  float* const to_weights = scratch.take(scratch.keys, kQueryBlock);
  float* const weights_by_query = scratch.take(kQueryBlock, scratch.keys);
  float* const to_scores_by_query = scratch.take(kQueryBlock, scratch.keys);
  float* const queries = scratch.take(kQueryBlock, width);
  float* const delta = scratch.take(kQueryBlock, width);
  float* const transposed = scratch.take(width, kQueryBlock);
  float* const to_queries = scratch.take(kQueryBlock, width);
  PrefetchQueue queue;
  copy_rows<Stored>(arguments.keys, first_key, num_keys, head, dim, 1.0f, keys, width,
                    scratch.keys);
  copy_rows<Stored>(arguments.values, first_key, num_keys, head, dim, 1.0f, values, width,
                    scratch.keys);
  transpose_matrix(keys, scratch.keys, width, width, keys_transposed, scratch.keys);
  transpose_matrix(values, scratch.keys, width, width, values_transposed, scratch.keys);
  for (int64_t i = 0; i < num_keys * width; i += kLanes<float>) {
    store(to_keys + i, Vector<float>{});
    store(to_values + i, Vector<float>{});
  }
  for (int64_t begin = 0; begin < num_queries; begin += kQueryBlock) {
    const QueryBlock block(arguments, sequence, head, begin);
    copy_rows<Stored>(arguments.queries, block.first, block.count, head, dim, scale, queries, width,
                      block.columns);
    copy_rows<Stored>(arguments.output, block.first, block.count, head, dim, 1.0f, delta, width,
                      block.columns);
    transpose_matrix(queries, block.columns, width, width, transposed, kQueryBlock);
    multiply_all({keys_transposed, scratch.keys}, {transposed, kQueryBlock}, dim,
                 {weights, kQueryBlock}, block.keys_seen, block.columns, queue);
    transpose_matrix(delta, block.columns, width, width, transposed, kQueryBlock);
    multiply_all({values_transposed, scratch.keys}, {transposed, kQueryBlock}, dim,
                 {to_weights, kQueryBlock}, block.keys_seen, block.columns, queue);
    for (int64_t column = 0; column < block.columns; column += kLanes<float>) {
      Vector<float> top = {};
      Vector<float> factor = {};
      for (int lane = 0; lane < kLanes<float> && column + lane < block.count; ++lane) {
        const int64_t at = (block.first + column + lane) * arguments.num_heads + head;
        top[lane] = arguments.maxima[at];
        factor[lane] = arguments.factors[at];
      }
      Vector<float> sum = {};
      for (int64_t key = 0; key < block.keys_seen; ++key) {
        const int64_t at = key * kQueryBlock + column;
        const Vector<float> score = block.hide(load(weights + at), key, column);
        const Vector<float> weight = exponential(score - top) * factor;
        Vector<float> to_weight = load(to_weights + at);
        if (block.draws != nullptr) to_weight *= block.kept(key, column);
        sum += weight * to_weight;
        store(weights + at, weight);
        store(to_weights + at, to_weight);
      }
      for (int64_t key = 0; key < block.keys_seen; ++key) {
        const int64_t at = key * kQueryBlock + column;
        const Vector<float> weight = load(weights + at);
        store(to_weights + at, weight * (load(to_weights + at) - sum));
        if (block.draws != nullptr) store(weights + at, weight * block.kept(key, column));
      }
    }
    multiply_all({to_weights, kQueryBlock}, {keys, width}, block.keys_seen, {to_queries, width},
                 block.count, width, queue);
    write_rows<Stored>(to_queries, width, arguments.to_queries, block.first, block.count, head, dim,
                       scale);
    const int64_t keys_of_squares = whole_vectors(block.keys_seen);
    transpose_matrix(weights, keys_of_squares, block.columns, kQueryBlock, weights_by_query,
                     scratch.keys);
    transpose_matrix(to_weights, keys_of_squares, block.columns, kQueryBlock, to_scores_by_query,
                     scratch.keys);
    // The queries have the scale already.
    multiply_all({to_scores_by_query, scratch.keys}, {queries, width}, block.count,
                 {to_keys, width}, block.keys_seen, width, queue, true);
    multiply_all({weights_by_query, scratch.keys}, {delta, width}, block.count, {to_values, width},
                 block.keys_seen, width, queue, true);
  }
  write_rows<Stored>(to_keys, width, arguments.to_keys, first_key, num_keys, head, dim, 1.0f);
  write_rows<Stored>(to_values, width, arguments.to_values, first_key, num_keys, head, dim, 1.0f);
}

inline int64_t attention_scratch_bytes(const AttentionArguments& arguments, int64_t keys) {
  return AttentionScratch::elements(keys, arguments.head_dim) * int64_t{sizeof(float)};
}

inline void attention_forward_of(const AttentionArguments& arguments, int64_t sequence,
                                 int64_t head, void* scratch) {
  with_stored(arguments.dtype, [&](auto stored) {
    attention_forward<decltype(stored)>(arguments, sequence, head, scratch);
  });
}

inline void attention_backward_of(const AttentionArguments& arguments, int64_t sequence,
                                  int64_t head, void* scratch) {
  with_stored(arguments.dtype, [&](auto stored) {
    attention_backward<decltype(stored)>(arguments, sequence, head, scratch);
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
