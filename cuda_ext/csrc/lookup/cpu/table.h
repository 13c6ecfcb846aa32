// SPDX-License-Identifier: Apache-2.0
// The lookup kernels of one instruction set, over ranges of work.
#pragma once

#include <cstdint>

#include "../kernels.h"

namespace recsys::cpu {

struct LookupKernels {
  // Positions [begin, end), or bags where there are bag offsets. Returns the smallest bad position,
  // or INT64_MAX.
  int64_t (*joint_rows)(const JointRowsArguments& arguments, int64_t begin, int64_t end);

  // Returns the first position in [begin, end) of a row outside the table, or INT64_MAX.
  int64_t (*first_bad_row)(const void* rows, IndexType type, int64_t num_table_rows, int64_t begin,
                           int64_t end);

  // Lookups [begin, end). `streaming`: the output is written around the caches.
  void (*gather)(const GatherArguments& arguments, bool streaming, int64_t begin, int64_t end);

  // Bags [begin, end).
  void (*bag)(const BagArguments& arguments, int64_t begin, int64_t end);

  // Lookups [begin, end).
  void (*bag_scale_gradient)(const BagScaleGradientArguments& arguments, int64_t begin,
                             int64_t end);
};

}  // namespace recsys::cpu
