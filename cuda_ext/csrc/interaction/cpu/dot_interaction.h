// SPDX-License-Identifier: Apache-2.0
// Dot interaction, one sample at a time, forward and backward.
//
// Both are products of small matrices. With X the N x D vectors of a sample, forward is the lower
// triangle of X X^T: outer products of the columns of X, so that sums run along the rows of the
// result and any D works. Backward is (L + L^T) X, with L the triangle of the gradient.
#pragma once

#include "../../cpu/tiles.h"
#include "../../cpu/vector.h"
#include "../interaction_arguments.h"
#include "rows.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr int kMaxOutput = kMaxDim + kMaxVectors * (kMaxVectors - 1) / 2;

// Numbers of a sample that both directions need.
struct SampleShape {
  int num_vectors;
  int dim;

  explicit SampleShape(const InteractionArguments& arguments)
      : num_vectors(arguments.num_vectors), dim(arguments.dim) {}

  // Where row i of the triangle, which has i products, begins in the output.
  int row_start(int i) const { return dim + i * (i - 1) / 2; }
  int output_length() const { return row_start(num_vectors); }
};

// columns[d][i] = rows[i][d], with zeros from N up to `stride`; D is rounded up.
inline void transpose_rows(const float* const* rows, int num_vectors, int dim, float* columns,
                           int stride) {
  for (int i = 0; i < num_vectors; i += kLanes<float>) {
    for (int d = 0; d < dim; d += kLanes<float>) {
      Vector<float> square[kLanes<float>];
      RECSYS_UNROLL for (int k = 0; k < kLanes<float>; ++k) {
        square[k] = i + k < num_vectors ? load(rows[i + k] + d) : Vector<float>{};
      }
      transpose(square);
      RECSYS_UNROLL for (int k = 0; k < kLanes<float>; ++k)
          store(columns + (d + k) * stride + i, square[k]);
    }
  }
}

// matrix = L + L^T, [N rounded up][stride], where row i of L is row i of the triangle.
inline void symmetric_matrix(const float* gradient, const SampleShape& shape, float* matrix,
                             int stride) {
  constexpr int kSide = kLanes<float>;
  const Vector<float> lanes = lane_numbers(LaneSequence{});
  for (int i = 0; i < shape.num_vectors; i += kSide) {
    for (int j = 0; j <= i; j += kSide) {
      Vector<float> lower[kSide];
      Vector<float> upper[kSide];
      RECSYS_UNROLL for (int k = 0; k < kSide; ++k) {
        const int length = i + k < shape.num_vectors ? i + k - j : 0;
        lower[k] = upper[k] = Vector<float>{};
        if (length > 0) {
          const Vector<float> row = load(gradient + shape.row_start(i + k) + j);
          lower[k] = upper[k] =
              lanes < broadcast(static_cast<float>(length)) ? row : Vector<float>{};
        }
      }
      transpose(upper);
      RECSYS_UNROLL for (int k = 0; k < kSide; ++k) {
        if (i == j) {
          store(matrix + (i + k) * stride + i, lower[k] + upper[k]);
        } else {
          store(matrix + (i + k) * stride + j, lower[k]);
          store(matrix + (j + k) * stride + i, upper[k]);
        }
      }
    }
  }
}

template <typename Element, typename Stored>
void interaction_forward(const InteractionArguments& arguments, int64_t begin, int64_t end) {
  alignas(kCacheLine) float scratch[kMaxVectors * kMaxDim];
  alignas(kCacheLine) float columns[kMaxDim * kMaxVectors];
  alignas(kCacheLine) float products[kTileRows * kMaxVectors];
  alignas(kCacheLine) float output[round_up(kMaxOutput, kLanes<float>) + kLanes<float>];
  const float* rows[kMaxVectors];
  PrefetchQueue queue;

  const SampleShape shape(arguments);
  const SampleReader<Element, Stored> reader(arguments);
  const int stride = round_up(shape.num_vectors, kLanes<float>);
  const StridedRows<const float> all_columns = {columns, stride};
  const int num_tiles = (shape.num_vectors - 1 + kTileRows - 1) / kTileRows;
  const bool streaming =
      streams<Element>(arguments.output, arguments.width, arguments.width, arguments.batch);

  for (int64_t sample = begin; sample < end; ++sample) {
    reader.read(sample, scratch, rows);
    reader.add_to(queue, sample, end);
    transpose_rows(rows, shape.num_vectors, shape.dim, columns, stride);
    for (int d = 0; d < shape.dim; d += kLanes<float>) store(output + d, load(rows[0] + d));
    for (int tile = 0; tile < num_tiles; ++tile) {
      // Tiles of full height: eight rows more need half a vector of columns more.
      const int first = 1 + tile * kTileRows;
      const int last =
          first + kTileRows < shape.num_vectors ? first + kTileRows : shape.num_vectors;
      multiply(
          Product<StridedRows<const float>>{
              {columns + first, stride}, all_columns, shape.dim, {products, kMaxVectors}, queue},
          last - first, last - 1);
      for (int i = first; i < last; ++i) {
        // Whole vectors: the next row overwrites what is too much of this one.
        float* const to = output + shape.row_start(i);
        const float* const from = products + (i - first) * kMaxVectors;
        for (int j = 0; j < i; j += kLanes<float>) store(to + j, load(from + j));
      }
    }
    queue.finish();
    write_row(output, shape.output_length(), arguments.width, streaming,
              static_cast<Element*>(arguments.output) + sample * arguments.width);
  }
  if (streaming) stream_fence();
}

template <typename Element, typename Stored>
void interaction_backward(const InteractionArguments& arguments, int64_t begin, int64_t end) {
  alignas(kCacheLine) float scratch[kMaxVectors * kMaxDim];
  alignas(kCacheLine) float gradient[round_up(kMaxOutput, kLanes<float>) + kLanes<float>];
  alignas(kCacheLine) float matrix[kMaxVectors * kMaxVectors];
  alignas(kCacheLine) float result[kTileRows * kMaxDim];
  const float* rows[kMaxVectors];
  PrefetchQueue queue;

  const SampleShape shape(arguments);
  const SampleReader<Element, Stored> reader(arguments);
  const int stride = round_up(shape.num_vectors, kLanes<float>);
  const int num_tiles = (shape.num_vectors + kTileRows - 1) / kTileRows;
  const int rest_columns = (shape.num_vectors - 1) * shape.dim;
  const bool streaming = shape.dim % kLanes<float> == 0 &&
                         streams<Element>(arguments.rest_gradient, arguments.rest_gradient_stride,
                                          rest_columns, arguments.batch);

  for (int64_t sample = begin; sample < end; ++sample) {
    reader.read(sample, scratch, rows);
    reader.add_to(queue, sample, end);
    const Element* const from =
        static_cast<const Element*>(arguments.gradient) + sample * arguments.width;
    read_row(from, shape.output_length(), gradient);
    if (sample + 1 < end) queue.add(from + arguments.width, arguments.width * sizeof(Element));
    symmetric_matrix(gradient, shape, matrix, stride);
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int first = shape.num_vectors * tile / num_tiles;  // tiles of about the same height
      const int last = shape.num_vectors * (tile + 1) / num_tiles;
      multiply(
          Product<const float* [kMaxVectors]>{
              {matrix + first, stride}, rows, shape.num_vectors, {result, kMaxDim}, queue},
          last - first, shape.dim);
      if (first == 0) {
        for (int d = 0; d < shape.dim; d += kLanes<float>) {
          store(result + d, load(result + d) + load(gradient + d));
        }
      }
      for (int i = first; i < last; ++i) {
        Element* const to = i == 0 ? static_cast<Element*>(arguments.first_gradient) +
                                         sample * arguments.first_gradient_stride
                                   : static_cast<Element*>(arguments.rest_gradient) +
                                         sample * arguments.rest_gradient_stride +
                                         int64_t{i - 1} * shape.dim;
        write_row(result + (i - first) * kMaxDim, shape.dim, shape.dim, streaming && i > 0, to);
      }
    }
    queue.finish();
  }
  if (streaming) stream_fence();
}

// Calls visit(element, stored) with values of the types that the arguments name.
template <typename Visit>
void with_interaction_types(const InteractionArguments& arguments, const Visit& visit) {
  const bool is_gathered = arguments.table != nullptr;
  with_stored(arguments.dtype, is_gathered ? arguments.table_dtype : arguments.dtype, visit);
}

inline void interaction_forward_range(const InteractionArguments& arguments, int64_t begin,
                                      int64_t end) {
  with_interaction_types(arguments, [&](auto element, auto stored) {
    interaction_forward<decltype(element), decltype(stored)>(arguments, begin, end);
  });
}

inline void interaction_backward_range(const InteractionArguments& arguments, int64_t begin,
                                       int64_t end) {
  with_interaction_types(arguments, [&](auto element, auto stored) {
    interaction_backward<decltype(element), decltype(stored)>(arguments, begin, end);
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
