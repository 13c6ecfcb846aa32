// SPDX-License-Identifier: Apache-2.0
// Where the vectors of a sample are, and how a lane reads 16 bytes of one for the tensor cores.
//
// Element is the type that is multiplied, Table the type in which vectors 1..N-1 are stored. A warp
// takes a sample. Lane 4 g + t, in the naming of the PTX manual: g is its row, t its place in it.
#pragma once

#include "../../cuda/intrinsics.cuh"
#include "../interaction_arguments.h"

namespace recsys::kernels {

constexpr int kWarpSize = 32;
constexpr int kBlockWarps = 4;  // samples that a block processes at once

// Elements in 16 bytes, and in a register of the tensor cores.
template <typename Element>
constexpr int kPerVector = static_cast<int>(16 / sizeof(Element));
template <typename Element>
constexpr int kPerRegister = static_cast<int>(4 / sizeof(Element));

// Place of pair (row, column), column <= row, in the output after the first vector.
__device__ __forceinline__ int pair_index(int row, int column) {
  return row * (row - 1) / 2 + column;
}

__device__ __forceinline__ int pair_count(int num_vectors) {
  return num_vectors * (num_vectors - 1) / 2;
}

// Row of the table that a vector is read from, or -1 for no row.
__device__ __forceinline__ int64_t table_row(const InteractionArguments& arguments, int64_t sample,
                                             int vector) {
  const int64_t position = sample * (arguments.num_vectors - 1) + vector - 1;
  const int64_t row = arguments.row_type == IndexType::kInt64
                          ? load_global(static_cast<const int64_t*>(arguments.rows) + position)
                          : load_global(static_cast<const int32_t*>(arguments.rows) + position);
  return row >= 0 && row < arguments.num_table_rows ? row : -1;
}

// A vector that a lane reads; null reads as zeros.
struct VectorSource {
  const char* data;
  bool is_first;
};

// `may_be_first` is a compile-time constant: the other places of a lane need no code for vector 0.
template <typename Element, typename Table>
__device__ __forceinline__ VectorSource find_vector(const InteractionArguments& arguments,
                                                    int64_t sample, int vector, bool may_be_first) {
  if (may_be_first && vector == 0) {
    const auto* first = static_cast<const Element*>(arguments.first);
    return {reinterpret_cast<const char*>(first + sample * arguments.first_stride), true};
  }
  const Table* vectors = nullptr;
  if (vector < arguments.num_vectors) {
    if (arguments.rows == nullptr) {
      vectors = static_cast<const Table*>(arguments.rest) + sample * arguments.rest_stride +
                (vector - 1) * arguments.dim;
    } else {
      const int64_t row = table_row(arguments, sample, vector);
      vectors =
          row < 0 ? nullptr : static_cast<const Table*>(arguments.table) + row * arguments.dim;
    }
  }
  return {reinterpret_cast<const char*>(vectors), false};
}

// The vectors that a lane has found: in each group of 32, the one with its own number. Other lanes
// get them from it: several times fewer instructions than if each lane found all that it reads.
template <int kBlocks>
struct FoundVectors {
  static constexpr int kCount = (16 * kBlocks + kWarpSize - 1) / kWarpSize;
  uint64_t addresses[kCount];
};

template <typename Element, typename Table, int kBlocks>
__device__ __forceinline__ FoundVectors<kBlocks> find_vectors(const InteractionArguments& arguments,
                                                              int64_t sample, int lane) {
  FoundVectors<kBlocks> vectors;
#pragma unroll
  for (int i = 0; i < FoundVectors<kBlocks>::kCount; ++i) {
    vectors.addresses[i] = reinterpret_cast<uint64_t>(
        find_vector<Element, Table>(arguments, sample, kWarpSize * i + lane, i == 0).data);
  }
  return vectors;
}

// Gets the source of `vector` from the lane that has found it; `least` is the least vector of all
// lanes, a compile-time constant. All lanes take part.
template <int kBlocks>
__device__ __forceinline__ VectorSource source_of(const FoundVectors<kBlocks>& vectors, int vector,
                                                  int least) {
  const uint64_t address =
      __shfl_sync(kAllLanes, vectors.addresses[least / kWarpSize], vector % kWarpSize);
  return {reinterpret_cast<const char*>(address), least == 0 && vector == 0};
}

// kPerVector<Element> columns of a vector as they are stored: 16 bytes, or 32 of a wider table.
template <typename Element, typename Table>
struct StoredColumns {
  static constexpr int kVectors = static_cast<int>(sizeof(Table) / sizeof(Element));
  Vector vectors[kVectors];
};

// Only loads: several of these are in flight before the first is converted.
template <typename Element, typename Table>
__device__ __forceinline__ StoredColumns<Element, Table> load_stored_columns(
    const VectorSource& source, int column, int dim) {
  StoredColumns<Element, Table> stored = {};
  if (source.data != nullptr && column < dim) {
    const int size = static_cast<int>(source.is_first ? sizeof(Element) : sizeof(Table));
    const char* address = source.data + column * size;
#ifndef RECSYS_EMULATOR
    // The address was passed between lanes as a number, so nvcc cannot see which memory it points
    // to.
    __builtin_assume(__isGlobal(address));
#endif
    stored.vectors[0] = load_vector(address);
    if constexpr (StoredColumns<Element, Table>::kVectors == 2) {
      if (!source.is_first) {
        stored.vectors[1] = load_vector(address + sizeof(Vector));
      }
    }
  }
  return stored;
}

// The columns as Elements, gathered rows rounded to nearest even.
template <typename Element, typename Table>
__device__ __forceinline__ Vector to_elements(const StoredColumns<Element, Table>& stored,
                                              bool is_first) {
  if constexpr (StoredColumns<Element, Table>::kVectors == 1) {
    return stored.vectors[0];
  } else {
    Vector elements;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Vector& half = stored.vectors[i / 2];
      const uint32_t packed = pack_pair<Element>(__uint_as_float(half.words[i % 2 * 2]),
                                                 __uint_as_float(half.words[i % 2 * 2 + 1]));
      elements.words[i] = is_first ? stored.vectors[0].words[i] : packed;
    }
    return elements;
  }
}

// A word of Elements as an operand of the tensor cores.
template <typename Element>
__device__ __forceinline__ uint32_t to_operand(uint32_t word) {
  if constexpr (std::is_same_v<Element, float>) {
    return round_to_tf32(__uint_as_float(word));
  } else {
    return word;
  }
}

}  // namespace recsys::kernels
