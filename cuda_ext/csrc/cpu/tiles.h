// SPDX-License-Identifier: Apache-2.0
// Small matrix products with their sums in registers, and transposes in registers.
#pragma once

#include "vector.h"

namespace recsys::cpu::RECSYS_ISA {

// The sums of a tile, a row of operands and a broadcast must fit the registers: 32 with AVX-512,
// else 16.
constexpr int kTileRows = kVectorBytes == 64 ? 8 : 6;
constexpr int kTileColumns = 2;

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rows at equal distances; an array of pointers serves where they are not.
template <typename T>
struct StridedRows {
  const T* first;
  int stride;

  const T* operator[](int k) const { return first + static_cast<int64_t>(k) * stride; }
};

// result[r][c] = sum over k < depth of left[k][r] * right[k][c], in the order of k, for kRows rows
// and kColumns vectors of columns.
template <typename T, int kRows, int kColumns, typename Right>
void multiply_tile(StridedRows<T> left, const Right& right, int depth, int column, T* result,
                   int result_stride) {
  Vector<T> sums[kRows][kColumns] = {};
  for (int k = 0; k < depth; ++k) {
    Vector<T> operands[kColumns];
    for (int c = 0; c < kColumns; ++c) operands[c] = load(right[k] + column + c * kLanes<T>);
    for (int r = 0; r < kRows; ++r) {
      const Vector<T> factor = broadcast(left[k][r]);
      for (int c = 0; c < kColumns; ++c) sums[r][c] += factor * operands[c];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      store(result + r * result_stride + column + c * kLanes<T>, sums[r][c]);
    }
  }
}

// The same for 1 <= num_rows <= kRows and all columns up to num_columns, rounded up to vectors.
template <typename T, typename Right, int kRows = kTileRows>
void multiply(StridedRows<T> left, const Right& right, int depth, int num_rows, int num_columns,
              T* result, int result_stride) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) {
      multiply<T, Right, kRows - 1>(left, right, depth, num_rows, num_columns, result,
                                    result_stride);
      return;
    }
  }
  int column = 0;
  for (; column + kLanes<T> < num_columns; column += kTileColumns * kLanes<T>) {
    multiply_tile<T, kRows, kTileColumns>(left, right, depth, column, result, result_stride);
  }
  if (column < num_columns) {
    multiply_tile<T, kRows, 1>(left, right, depth, column, result, result_stride);
  }
}

// Lane l of the first result is a[l], or b[l - kDistance] where l has the bit kDistance; the second
// result has the other half: 2x2 blocks of a and b change places.
template <typename T, int kDistance, int... kLane>
void exchange(Vector<T>& a, Vector<T>& b, std::integer_sequence<int, kLane...>) {
  constexpr int kNumLanes = kLanes<T>;
  const Vector<T> first =
      __builtin_shufflevector(a, b, (kLane & kDistance ? kNumLanes + kLane - kDistance : kLane)...);
  b = __builtin_shufflevector(a, b, (kLane & kDistance ? kNumLanes + kLane : kLane + kDistance)...);
  a = first;
}

// Transposes a square of kLanes x kLanes in place.
template <typename T, int kDistance = kLanes<T> / 2>
void transpose(Vector<T> (&rows)[kLanes<T>]) {
  if constexpr (kDistance > 0) {
    for (int k = 0; k < kLanes<T>; ++k) {
      if ((k & kDistance) == 0) {
        exchange<T, kDistance>(rows[k], rows[k + kDistance], LaneSequence<T>{});
      }
    }
    transpose<T, kDistance / 2>(rows);
  }
}

}  // namespace recsys::cpu::RECSYS_ISA
