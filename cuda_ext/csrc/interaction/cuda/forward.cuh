// SPDX-License-Identifier: Apache-2.0
// Dot interaction on the tensor cores: X Xᵀ of a sample by one warp, with operands only in
// registers.
//
// The sum over columns may run in any order if both operands use the same order. So a lane loads 16
// neighbouring bytes of its rows and uses them as the columns that the tensor core expects in its
// registers. Since the right operand is the transposed left one, the registers of a row serve as
// both. Each element is loaded once, without shared memory. Only the output row is assembled in
// shared memory, for stores of 16 bytes.
#pragma once

#include "vectors.cuh"

namespace recsys::kernels {

// Tiles of 16 x 8 products that cover the lower triangle, for rows in blocks of 16.
template <int kBlocks>
constexpr int kTriangleTiles = kBlocks * (kBlocks + 1);

// Adds the products of 64 bytes of each row; words[block][half] belong to rows g and g + 8.
template <typename Element, int kBlocks>
__device__ __forceinline__ void add_products(float (&products)[kTriangleTiles<kBlocks>][4],
                                             const Vector (&words)[kBlocks][2]) {
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    uint32_t operands[kBlocks][4];
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      operands[i / 4][i % 4] = to_operand<Element>(words[i / 4][i % 2].words[2 * step + i % 4 / 2]);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int tile = 0; tile < 2 * (block + 1); ++tile) {
        const uint32_t right[2] = {operands[tile / 2][tile % 2], operands[tile / 2][tile % 2 + 2]};
        multiply_add<Element>(products[block * (block + 1) + tile], operands[block], right);
      }
    }
  }
}

// Writes the products of this lane to their places, and the padding.
template <typename Element, int kBlocks>
__device__ __forceinline__ void write_products(const float (&products)[kTriangleTiles<kBlocks>][4],
                                               SharedPointer<Element> output,
                                               const InteractionArguments& arguments, int lane) {
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int tile = 0; tile < 2 * (block + 1); ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * block + lane / 4 + 8 * (i / 2);
        const int column = 8 * tile + lane % 4 * 2 + i % 2;
        if (row < arguments.num_vectors && column < row) {
          output[arguments.dim + pair_index(row, column)] =
              convert<Element>(products[block * (block + 1) + tile][i]);
        }
      }
    }
  }
  const int end = arguments.dim + pair_count(arguments.num_vectors);
  for (int column = end + lane; column < arguments.width; column += kWarpSize) {
    output[column] = Element{};
  }
}

template <typename Element, typename Table, int kBlocks>
__global__ void __launch_bounds__(kBlockWarps* kWarpSize, kBlocks <= 2 ? 4 : 2)
    interact_vectors(InteractionArguments arguments) {
  using Stored = StoredColumns<Element, Table>;
  constexpr int kColumns = 4 * kPerVector<Element>;                     // 64 bytes of a row
  constexpr int kInFlight = 64 / (kBlocks * 2 * Stored::kVectors * 4);  // 64 registers of loads
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const int dim = arguments.dim;
  const SharedPointer<Element> row = dynamic_shared<Element>() + warp * arguments.width;
  for (int64_t sample = static_cast<int64_t>(blockIdx.x) * kBlockWarps + warp;
       sample < arguments.batch; sample += static_cast<int64_t>(gridDim.x) * kBlockWarps) {
    const auto vectors = find_vectors<Element, Table, kBlocks>(arguments, sample, lane);
    VectorSource sources[kBlocks][2];
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i) {
      sources[i / 2][i % 2] = source_of(vectors, 8 * i + lane / 4, 8 * i);
    }
    float products[kTriangleTiles<kBlocks>][4] = {};
#pragma unroll 1
    for (int base = 0; base < dim; base += kInFlight * kColumns) {
      Stored stored[kInFlight][kBlocks][2];
#pragma unroll
      for (int i = 0; i < kInFlight * kBlocks * 2; ++i) {
        const int chunk = i / (kBlocks * 2);
        const int column = base + chunk * kColumns + lane % 4 * kPerVector<Element>;
        stored[chunk][i / 2 % kBlocks][i % 2] =
            load_stored_columns<Element, Table>(sources[i / 2 % kBlocks][i % 2], column, dim);
      }
#pragma unroll
      for (int chunk = 0; chunk < kInFlight; ++chunk) {
        const int column = base + chunk * kColumns;
        if (column < dim) {
          Vector words[kBlocks][2];
#pragma unroll
          for (int i = 0; i < kBlocks * 2; ++i) {
            words[i / 2][i % 2] =
                to_elements(stored[chunk][i / 2][i % 2], sources[i / 2][i % 2].is_first);
          }
          const int own = column + lane % 4 * kPerVector<Element>;
          if (lane / 4 == 0 && own < dim) {
            store_vector(row + own, words[0][0]);
          }
          add_products<Element, kBlocks>(products, words);
        }
      }
    }
    write_products<Element, kBlocks>(products, row, arguments, lane);
    __syncwarp();
    Element* output = static_cast<Element*>(arguments.output) + sample * arguments.width;
    for (int column = lane * kPerVector<Element>; column < arguments.width;
         column += kWarpSize * kPerVector<Element>) {
      store_global_vector(output + column, load_vector(row + column));
    }
    __syncwarp();  // the next sample overwrites the row
  }
}

}  // namespace recsys::kernels
