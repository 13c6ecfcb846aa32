// SPDX-License-Identifier: Apache-2.0
// Small matrix products with their sums in registers.
#pragma once

#include "prefetch_queue.h"
#include "vector.h"

namespace recsys::cpu::RECSYS_ISA {

// The sums of a tile, a row of operands and a broadcast must fit the registers: 32 with AVX-512,
// else 16.
constexpr int kTileRows = kVectorBytes == 64 ? 8 : 6;

// Columns that fill half a vector of AVX-512 or less: half a vector costs half as much as a whole
// one on CPUs whose units are 256 bits wide, and the same on others.
constexpr int kNarrowestBytes = kVectorBytes == 64 ? 32 : kVectorBytes;

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rows at equal distances; for other rows use an array of pointers.
template <typename T>
struct StridedRows {
  T* first;
  int stride;

  T* operator[](int k) const { return first + static_cast<int64_t>(k) * stride; }
};

// A product to compute: result[r][c] = sum over k < depth of left[k][r] * right[k][c]. Right is
// StridedRows<const float> or an array of pointers to rows.
template <typename Right>
struct Product {
  StridedRows<const float> left;
  const Right& right;
  int depth;
  StridedRows<float> result;
  PrefetchQueue& queue;  // what to prefetch meanwhile
  bool adds = false;     // add to what the result holds
};

// Products that are summed separately before these sums are added up: a plain sum of 256 squares
// errs several times as much.
constexpr int kSumBlock = 64;

// Computes kRows rows and kColumns vectors of kBytes, from `column` on.
template <int kRows, int kColumns, int kBytes, typename Right>
void multiply_tile(const Product<Right>& product, int column) {
  using Sums = typename VectorOfBytes<float, kBytes>::type;
  constexpr int kWidth = kBytes / sizeof(float);
  const StridedRows<const float> left = product.left;
  for (int begin = 0; begin < product.depth; begin += kSumBlock) {
    const int end = product.depth < begin + kSumBlock ? product.depth : begin + kSumBlock;
    Sums sums[kRows][kColumns];
    RECSYS_UNROLL for (int r = 0; r < kRows; ++r) {
      RECSYS_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] = Sums{};
    }
    for (int k = begin; k < end; ++k) {
      if (k % 2 == 0) product.queue.step();
      Sums operands[kColumns];
      RECSYS_UNROLL for (int c = 0; c < kColumns; ++c) {
        memcpy(&operands[c], product.right[k] + column + c * kWidth, kBytes);
      }
      RECSYS_UNROLL for (int r = 0; r < kRows; ++r) {
        const Sums factor = left[k][r] - Sums{};
        RECSYS_UNROLL for (int c = 0; c < kColumns; ++c) sums[r][c] += factor * operands[c];
      }
    }
    RECSYS_UNROLL for (int r = 0; r < kRows; ++r) {
      RECSYS_UNROLL for (int c = 0; c < kColumns; ++c) {
        float* const result = product.result[r] + column + c * kWidth;
        Sums before = {};
        if (begin > 0 || product.adds) memcpy(&before, result, kBytes);
        sums[r][c] += before;
        memcpy(result, &sums[r][c], kBytes);
      }
    }
  }
}

// Computes 1 <= num_rows <= kRows rows and num_columns, rounded up to what vectors hold.
template <typename Right, int kRows = kTileRows>
void multiply(const Product<Right>& product, int num_rows, int num_columns) {
  if constexpr (kRows > 1) {
    if (num_rows < kRows) return multiply<Right, kRows - 1>(product, num_rows, num_columns);
  }
  constexpr int kNarrowest = kNarrowestBytes / sizeof(float);
  int column = 0;
  for (; num_columns - column > 2 * kLanes<float> - kNarrowest; column += 2 * kLanes<float>) {
    multiply_tile<kRows, 2, kVectorBytes>(product, column);
  }
  if (num_columns - column > kLanes<float> - kNarrowest) {
    multiply_tile<kRows, 1, kVectorBytes>(product, column);
    column += kLanes<float>;
  }
  if (kNarrowest < kLanes<float> && num_columns > column) {
    multiply_tile<kRows, 1, kNarrowestBytes>(product, column);
  }
}

// A product of any number of rows: result[r][c] = sum over k < depth of left[k][r] * right[k][c],
// or the sum added to what the result holds.
inline void multiply_all(StridedRows<const float> left, StridedRows<const float> right, int depth,
                         StridedRows<float> result, int64_t num_rows, int num_columns,
                         PrefetchQueue& queue, bool adds = false) {
  for (int64_t row = 0; row < num_rows; row += kTileRows) {
    const int64_t rest = num_rows - row;
    multiply(Product<StridedRows<const float>>{{left.first + row, left.stride},
                                               right,
                                               depth,
                                               {result[static_cast<int>(row)], result.stride},
                                               queue,
                                               adds},
             static_cast<int>(rest < kTileRows ? rest : kTileRows), num_columns);
  }
}

}  // namespace recsys::cpu::RECSYS_ISA
