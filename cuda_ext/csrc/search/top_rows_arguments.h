// SPDX-License-Identifier: Apache-2.0
// Kernel of the rows with the largest products, for the CPU: its arguments.
#pragma once

#include <cstdint>

namespace recsys {

// The rows of a table with the largest products with each query, in float64, found by a scan of an
// 8-bit copy. A code stands for the integer r = code - 128, and a row for scale x r.
struct TopRowsArguments {
  int64_t num_queries;  // B
  int64_t num_rows;     // R
  int64_t dim;          // D
  int64_t count;        // K
  const float* queries;
  const float* table;  // [R, table_stride]
  int64_t table_stride;
  const uint8_t* codes;     // [blocks, D / 4 rounded up, kSearchBlock, 4]
  const float* scales;      // [blocks x kSearchBlock]
  const float* biases;      // the same, -inf past the last row
  double residual;          // largest |row - scale x r| / scale
  double code_norm;         // largest |r|
  const int64_t* excluded;  // rows to leave out of the list of a query, ascending for each
  const int64_t* offsets;   // [B + 1] first of them
  int64_t* rows;            // [B, K], -1 where none is left
  float* scores;            // [B, K], -inf where none is left
  int64_t* scored;          // [B] rows whose product was computed in float64
};

// Rows of a block of codes: 4 columns of each row lie side by side, for all rows of the block.
constexpr int64_t kSearchBlock = 64;

// With more columns the sums of a scan would not fit 32 bits.
constexpr int64_t kMostSearchColumns = 1024;

}  // namespace recsys

namespace recsys::cpu {

void run_top_rows(const TopRowsArguments& arguments);

// Levels of a query on each side of 0. Times 255 and kMostSearchColumns they fit 32 bits.
constexpr int kQueryLevels = 8191;

// A query in integer levels, and how sums of its products become bounds.
struct ScanQuery {
  const uint32_t* digits;  // [2 x column groups] as pack_digits writes them
  int32_t correction;      // -128 x the sum of the levels
  float step;              // of a level
  float slack;             // largest error of a sum x step, in scales of a row
};

struct ScanRows {
  int64_t column_groups;  // D / 4 rounded up
  const uint8_t* codes;
  const float* scales;
  const float* biases;
};

}  // namespace recsys::cpu
