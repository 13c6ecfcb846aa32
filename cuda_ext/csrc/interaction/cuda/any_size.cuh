// SPDX-License-Identifier: Apache-2.0
// Dot interaction without tensor cores: exact float32, and any size and alignment. One
// block takes a sample, in chunks of columns that go through shared memory.
#pragma once

#include "vectors.cuh"

namespace recsys::kernels {

constexpr int kChunkColumns = 32;
constexpr int kSpacedRow = kChunkColumns + 1;  // spreads a column over the banks
constexpr int kTile = 4;  // a thread computes 4 x 4 products, so that a read serves four of them
constexpr int kBackwardThreads = 128;

__host__ __device__ __forceinline__ int round_up_to_tile(int count) {
  return (count + kTile - 1) / kTile * kTile;
}

// Tiles of the lower triangle, diagonal ones included.
__host__ __device__ __forceinline__ int triangle_tiles(int num_vectors) {
  const int rows = (num_vectors + kTile - 1) / kTile;
  return rows * (rows + 1) / 2;
}

// At least one thread per tile.
__host__ __device__ __forceinline__ int forward_threads(int num_vectors) {
  return (triangle_tiles(num_vectors) + kWarpSize - 1) / kWarpSize * kWarpSize;
}

// Shared memory, in floats: a chunk of all vectors, and in the backward pass the matrix of pairs.
__host__ __device__ __forceinline__ int forward_shared_numbers(int num_vectors) {
  return num_vectors * kSpacedRow;
}
__host__ __device__ __forceinline__ int backward_shared_numbers(int num_vectors) {
  const int size = round_up_to_tile(num_vectors);
  return size * size + num_vectors * kChunkColumns;
}

// Element `i` of an array of any type.
__device__ __forceinline__ float read_number(const void* data, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::kFloat32:
      return load_global(static_cast<const float*>(data) + i);
    case Dtype::kFloat16:
      return convert<float>(load_global(static_cast<const float16*>(data) + i));
    case Dtype::kBFloat16:
      return convert<float>(load_global(static_cast<const bfloat16*>(data) + i));
  }
  return 0;
}

__device__ __forceinline__ void write_number(void* data, Dtype dtype, int64_t i, float value) {
  switch (dtype) {
    case Dtype::kFloat32:
      store_global(static_cast<float*>(data) + i, value);
      return;
    case Dtype::kFloat16:
      store_global(static_cast<float16*>(data) + i, convert<float16>(value));
      return;
    case Dtype::kBFloat16:
      store_global(static_cast<bfloat16*>(data) + i, convert<bfloat16>(value));
      return;
  }
}

// Whether a number is no longer finite when it is stored.
__device__ __forceinline__ bool overflows(Dtype dtype, float value) {
  const float stored = dtype == Dtype::kFloat16    ? convert<float>(convert<float16>(value))
                       : dtype == Dtype::kBFloat16 ? convert<float>(convert<bfloat16>(value))
                                                   : value;
  return !(stored - stored == 0);
}

__device__ __forceinline__ float read_vector(const InteractionArguments& arguments, int64_t sample,
                                             int vector, int column) {
  if (vector == 0) {
    return read_number(arguments.first, arguments.dtype, sample * arguments.first_stride + column);
  }
  if (arguments.rows == nullptr) {
    return read_number(
        arguments.rest, arguments.dtype,
        sample * arguments.rest_stride + static_cast<int64_t>(vector - 1) * arguments.dim + column);
  }
  const int64_t row = table_row(arguments, sample, vector);
  if (row < 0) {
    return 0;
  }
  const float value =
      read_number(arguments.table, arguments.table_dtype, row * arguments.dim + column);
  switch (arguments.dtype) {
    case Dtype::kFloat16:
      return convert<float>(convert<float16>(value));
    case Dtype::kBFloat16:
      return convert<float>(convert<bfloat16>(value));
    default:
      return value;
  }
}

// Columns [base, base + kChunkColumns) of all vectors to shared memory, zeros beyond the last.
template <int kStride>
__device__ __forceinline__ void stage_chunk(const InteractionArguments& arguments, int64_t sample,
                                            int base, SharedPointer<float> values) {
#pragma unroll 4
  for (int i = threadIdx.x; i < arguments.num_vectors * kChunkColumns; i += blockDim.x) {
    const int vector = i / kChunkColumns;
    const int column = base + i % kChunkColumns;
    values[vector * kStride + i % kChunkColumns] =
        column < arguments.dim ? read_vector(arguments, sample, vector, column) : 0.0f;
  }
}

// Adds a chunk's products of vectors [row, row + 4) and [column, column + 4). Products beyond the
// last vector are not used, so the last vector is read instead. Each chunk is summed separately
// first: the rounding errors of a long sum stay as small as those of a blocked matrix product.
__device__ __forceinline__ void add_tile(float (&products)[kTile][kTile],
                                         SharedPointer<float> values, int row, int column,
                                         int last) {
  float chunk[kTile][kTile] = {};
#pragma unroll 4
  for (int k = 0; k < kChunkColumns; ++k) {
    float left[kTile];
    float right[kTile];
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      left[i] = values[(row + i < last ? row + i : last) * kSpacedRow + k];
      right[i] = values[(column + i < last ? column + i : last) * kSpacedRow + k];
    }
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
#pragma unroll
      for (int j = 0; j < kTile; ++j) {
        chunk[i][j] += left[i] * right[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kTile * kTile; ++i) {
    products[i / kTile][i % kTile] += chunk[i / kTile][i % kTile];
  }
}

__global__ void interact_vectors_of_any_size(InteractionArguments arguments) {
  const int thread = threadIdx.x;
  const bool has_tile = thread < triangle_tiles(arguments.num_vectors);
  const int pairs_end = arguments.dim + pair_count(arguments.num_vectors);
  const SharedPointer<float> values = dynamic_shared<float>();
  int tile_row = 0;
  while ((tile_row + 1) * (tile_row + 2) / 2 <= thread) {
    ++tile_row;
  }
  const int row = kTile * tile_row;
  const int column = kTile * (thread - tile_row * (tile_row + 1) / 2);
  for (int64_t sample = blockIdx.x; sample < arguments.batch; sample += gridDim.x) {
    const int64_t begin = sample * arguments.width;
    float products[kTile][kTile] = {};
    for (int base = 0; base < arguments.dim; base += kChunkColumns) {
      stage_chunk<kSpacedRow>(arguments, sample, base, values);
      __syncthreads();
      if (has_tile) {
        add_tile(products, values, row, column, arguments.num_vectors - 1);
      }
      for (int i = thread; i < kChunkColumns && base + i < arguments.dim; i += blockDim.x) {
        write_number(arguments.output, arguments.dtype, begin + base + i, values[i]);
      }
      __syncthreads();
    }
    for (int i = 0; has_tile && i < kTile * kTile; ++i) {
      const int a = row + i / kTile;
      const int b = column + i % kTile;
      if (a < arguments.num_vectors && b < a) {
        write_number(arguments.output, arguments.dtype, begin + arguments.dim + pair_index(a, b),
                     products[i / kTile][i % kTile]);
      }
    }
    for (int i = pairs_end + thread; i < arguments.width; i += blockDim.x) {
      write_number(arguments.output, arguments.dtype, begin + i, 0.0f);
    }
  }
}

// The symmetric matrix of the gradients of pairs, zeros beyond the last vector.
__device__ __forceinline__ void stage_pair_gradients(const InteractionArguments& arguments,
                                                     int64_t sample, SharedPointer<float> weights) {
  const int size = round_up_to_tile(arguments.num_vectors);
  for (int i = threadIdx.x; i < size * size; i += blockDim.x) {
    const int a = i / size > i % size ? i / size : i % size;
    const int b = i / size > i % size ? i % size : i / size;
    float weight = 0;
    if (a < arguments.num_vectors && a != b) {
      weight = read_number(arguments.gradient, arguments.dtype,
                           sample * arguments.width + arguments.dim + pair_index(a, b));
    }
    weights[i] = weight;
  }
}

// Sums and writes a chunk's gradients; a thread computes one column of four vectors at a time.
__device__ __forceinline__ void write_chunk_gradients(const InteractionArguments& arguments,
                                                      int64_t sample, int base,
                                                      SharedPointer<float> weights,
                                                      SharedPointer<float> values) {
  const int size = round_up_to_tile(arguments.num_vectors);
  for (int i = threadIdx.x; i < size / kTile * kChunkColumns; i += blockDim.x) {
    const int first = i / kChunkColumns * kTile;
    const int column = base + i % kChunkColumns;
    float sums[kTile] = {};
    for (int other = 0; other < arguments.num_vectors; ++other) {
      const float value = values[other * kChunkColumns + i % kChunkColumns];
#pragma unroll
      for (int k = 0; k < kTile; ++k) {
        sums[k] += weights[other * size + first + k] * value;
      }
    }
    for (int k = 0; k < kTile && column < arguments.dim; ++k) {
      const int vector = first + k;
      if (vector == 0) {
        // The first vector was copied to the output too.
        const float copied =
            read_number(arguments.gradient, arguments.dtype, sample * arguments.width + column);
        write_number(arguments.first_gradient, arguments.dtype,
                     sample * arguments.first_gradient_stride + column, sums[k] + copied);
      } else if (vector < arguments.num_vectors) {
        write_number(arguments.rest_gradient, arguments.dtype,
                     sample * arguments.rest_gradient_stride +
                         static_cast<int64_t>(vector - 1) * arguments.dim + column,
                     sums[k]);
        if (arguments.overflow != nullptr && overflows(arguments.dtype, sums[k])) {
          raise_flag(arguments.overflow);
        }
      }
    }
  }
}

__global__ void interact_vectors_of_any_size_backward(InteractionArguments arguments) {
  const int size = round_up_to_tile(arguments.num_vectors);
  const SharedPointer<float> weights = dynamic_shared<float>();
  const SharedPointer<float> values = weights + size * size;
  for (int64_t sample = blockIdx.x; sample < arguments.batch; sample += gridDim.x) {
    stage_pair_gradients(arguments, sample, weights);
    for (int base = 0; base < arguments.dim; base += kChunkColumns) {
      stage_chunk<kChunkColumns>(arguments, sample, base, values);
      __syncthreads();
      write_chunk_gradients(arguments, sample, base, weights, values);
      __syncthreads();
    }
  }
}

}  // namespace recsys::kernels
