// SPDX-License-Identifier: Apache-2.0
// Checks rows and bag offsets, which kernels on the CPU would otherwise follow out of the table.
#pragma once

#include "lookup/lookup_arguments.h"
#include "table_rows.h"
#include "tensor_arguments.h"

namespace recsys {

// Throws if a row is outside the table. Does not check on a device, which it would have to wait
// for: kernels there read such rows as zeros and never write them.
inline void check_rows([[maybe_unused]] const Tensor& rows, [[maybe_unused]] int64_t num_table_rows,
                       [[maybe_unused]] const char* op) {
#ifndef RECSYS_EMULATOR
  if (rows.is_cuda()) {
    return;
  }
  const int64_t bad =
      cpu::find_bad_row(rows.data_ptr(), row_type_of(rows, op), rows.numel(), num_table_rows);
  STD_TORCH_CHECK(bad < 0, op, ": the row at position ", bad, " is outside the table of ",
                  num_table_rows, " rows");
#endif
}

// Fills in a table [R, D] and the unchecked numbers of the rows to look up.
template <typename Table>
void set_table_rows(TableRows<Table>& arguments, const Tensor& table, const Tensor& rows,
                    const char* op) {
  STD_TORCH_CHECK(table.dim() == 2, op, ": table must be [R, D]");
  check_contiguous(table, op, "table");
  check_contiguous(rows, op, "rows");
  check_same_device(rows, table, op, "rows");
  arguments.table = table.data_ptr();
  arguments.table_dtype = dtype_of(table, op, "table");
  STD_TORCH_CHECK(arguments.table_dtype != Dtype::kFloat16, op,
                  ": table must be float32 or bfloat16");
  arguments.num_table_rows = table.size(0);
  arguments.dim = static_cast<int32_t>(table.size(1));
  arguments.rows = rows.data_ptr();
  arguments.row_type = row_type_of(rows, op);
  arguments.count = rows.numel();
}

// The same as check_rows for rows in ascending order: only the two ends can be outside.
inline void check_sorted_rows([[maybe_unused]] const Tensor& rows,
                              [[maybe_unused]] int64_t num_table_rows,
                              [[maybe_unused]] const char* op) {
#ifndef RECSYS_EMULATOR
  if (rows.is_cuda() || rows.numel() == 0) {
    return;
  }
  const IndexType type = row_type_of(rows, op);
  STD_TORCH_CHECK(integer_at(rows.data_ptr(), type, 0) >= 0 &&
                      integer_at(rows.data_ptr(), type, rows.numel() - 1) < num_table_rows,
                  op, ": a row is outside the table of ", num_table_rows, " rows");
#endif
}

// Checks bag offsets as far as that is possible without waiting for a device.
inline const int64_t* bag_offsets_data(const Tensor& bag_offsets, const Tensor& beside,
                                       int64_t count, const char* op) {
  STD_TORCH_CHECK(bag_offsets.numel() >= 1, op, ": bag_offsets must hold one more than the bags");
  const auto* offsets = optional_data<int64_t>(bag_offsets, beside, ScalarType::Long,
                                               bag_offsets.numel(), op, "bag_offsets");
  if (!bag_offsets.is_cuda()) {
    const int64_t bags = bag_offsets.numel() - 1;
    STD_TORCH_CHECK(offsets[0] == 0 && offsets[bags] == count, op,
                    ": bag_offsets must run from 0 to the ", count, " lookups");
    for (int64_t bag = 0; bag < bags; ++bag) {
      STD_TORCH_CHECK(offsets[bag] <= offsets[bag + 1], op, ": bag_offsets decrease after bag ",
                      bag);
    }
  }
  return offsets;
}

}  // namespace recsys
