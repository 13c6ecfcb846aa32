// SPDX-License-Identifier: Apache-2.0
// The rows of a table that lookups name: shared by gathers, interactions and updates.
#pragma once

#include <cstdint>

#include "dtypes.h"

namespace recsys {

// Table is void if the rows change, else const void.
template <typename Table>
struct TableRows {
  Table* table;  // [R, D] float32 or bfloat16
  Dtype table_dtype;
  int64_t num_table_rows;  // R
  int32_t dim;             // D
  const void* rows;        // [count] numbers of rows
  IndexType row_type;      // kInt32 or kInt64
  int64_t count;           // L
};

}  // namespace recsys
