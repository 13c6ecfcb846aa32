// SPDX-License-Identifier: Apache-2.0
// The scan of 8-bit rows of one instruction set.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

// Levels of a query on each side of 0. Times 255 and kMostSearchColumns they fit 32 bits.
constexpr int kQueryLevels = 8191;

// A query in whole numbers, and how sums of its products become bounds.
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

struct SearchKernels {
  // Rearranges the levels of 4 x `column_groups` columns for scan().
  void (*pack_digits)(const int16_t* levels, int64_t column_groups, uint32_t* digits);

  // Writes the rows of blocks [begin, end) whose upper bound is not below `threshold`, counted from
  // the first row of `begin`; returns their number.
  int64_t (*scan)(const ScanRows& rows, const ScanQuery& query, int64_t begin, int64_t end,
                  float threshold, int32_t* candidates);
};

}  // namespace recsys::cpu
