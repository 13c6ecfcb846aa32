// SPDX-License-Identifier: Apache-2.0
// Rows as vectors. A team of 2^k lanes of one warp shares a row; each lane takes Width neighbouring
// columns, so that a row of a few columns does not idle the other lanes of the warp.
#pragma once

#include <cstring>

#include "../dtypes.h"
#include "intrinsics.cuh"

namespace recsys::kernels {

constexpr int kWarpLanes = 32;
constexpr int kBlockThreads = 256;

// Width neighbouring elements of a row, moved by loads and stores of up to 16 bytes.
template <typename T, int Width>
struct alignas(sizeof(T) * Width < 16 ? sizeof(T) * Width : 16) Columns {
  T values[Width];
};

template <int Width, typename T>
__device__ __forceinline__ Columns<T, Width> load_columns(const T* row, int64_t column) {
  using Result = Columns<T, Width>;
  if constexpr (sizeof(Result) < sizeof(Vector)) {
    return load_global(reinterpret_cast<const Result*>(row + column));
  } else {
    Result columns;
#pragma unroll
    for (size_t i = 0; i < sizeof(Result); i += sizeof(Vector)) {
      const Vector vector = load_vector(row + column + i / sizeof(T));
      memcpy(columns.values + i / sizeof(T), &vector, sizeof(Vector));
    }
    return columns;
  }
}

template <typename T, int Width>
__device__ __forceinline__ void store_columns(T* row, int64_t column,
                                              const Columns<T, Width>& columns) {
  if constexpr (sizeof(columns) < sizeof(Vector)) {
    store_global(reinterpret_cast<Columns<T, Width>*>(row + column), columns);
  } else {
#pragma unroll
    for (size_t i = 0; i < sizeof(columns); i += sizeof(Vector)) {
      Vector vector;
      memcpy(&vector, columns.values + i / sizeof(T), sizeof(Vector));
      store_global_vector(row + column + i / sizeof(T), vector);
    }
  }
}

// Columns as they are stored. Numbers of 16 bits stay in words of 32 until one is used: splitting
// them right after the load would wait for it there.
template <typename T, int Width>
struct RawColumns {
  using Word = std::conditional_t<sizeof(T) * Width % sizeof(uint32_t) == 0, uint32_t, T>;
  static constexpr int kWords = static_cast<int>(sizeof(T) * Width / sizeof(Word));
  Columns<Word, kWords> words;

  __device__ __forceinline__ T operator[](int i) const {
    constexpr int kPerWord = static_cast<int>(sizeof(Word) / sizeof(T));
    T value;
    if constexpr (kPerWord == 1) {
      memcpy(&value, words.values + i, sizeof(value));
    } else {
      const auto bits = static_cast<uint16_t>(words.values[i / 2] >> (16 * (i % 2)));
      memcpy(&value, &bits, sizeof(value));
    }
    return value;
  }
};

template <int Width, typename T>
__device__ __forceinline__ RawColumns<T, Width> load_raw_columns(const T* row, int64_t column) {
  using Raw = RawColumns<T, Width>;
  const auto* words = reinterpret_cast<const typename Raw::Word*>(row + column);
  return {load_columns<Raw::kWords>(words, 0)};
}

// Row numbers of either width. The branch is the same for every thread of a launch.
struct RowNumbers {
  const void* data;
  bool wide;

  __device__ __forceinline__ int64_t operator[](int64_t position) const {
    return wide ? load_global(static_cast<const int64_t*>(data) + position)
                : load_global(static_cast<const int32_t*>(data) + position);
  }
};

__device__ __forceinline__ RowNumbers row_numbers(const void* data, IndexType type) {
  return {data, type == IndexType::kInt64};
}

__device__ __forceinline__ bool is_row(int64_t row, int64_t num_table_rows) {
  return row >= 0 && row < num_table_rows;
}

// The number of a thread among the teams of a launch.
struct Team {
  int lanes;        // of a team: a power of two, at most a warp
  int lane;         // of this thread in its team
  int in_block;     // number of this team in its block
  int block_teams;  // teams of a block
  int block;        // of this thread

  __device__ __forceinline__ explicit Team(int lanes_of_team)
      : lanes(lanes_of_team),
        lane(static_cast<int>(threadIdx.x) & (lanes_of_team - 1)),
        in_block(static_cast<int>(threadIdx.x) / lanes_of_team),
        block_teams(static_cast<int>(blockDim.x) / lanes_of_team),
        block(static_cast<int>(blockIdx.x)) {}

  // Number of this team in the launch.
  __device__ __forceinline__ int64_t index() const {
    return static_cast<int64_t>(block) * block_teams + in_block;
  }

  // Sum over the lanes of the team. All lanes of the warp must come here together.
  template <typename T>
  __device__ __forceinline__ T sum(T value) const {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
  }
};

}  // namespace recsys::kernels
