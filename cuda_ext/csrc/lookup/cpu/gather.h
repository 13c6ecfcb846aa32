// SPDX-License-Identifier: Apache-2.0
// Reads of table rows: gather and bags.
#pragma once

#include "../../cpu/weighted_sum.h"
#include "../lookup_arguments.h"
#include "joint_rows.h"

namespace recsys::cpu::RECSYS_ISA {

// The rows of a table that lookups name.
template <typename StoredType>
struct TableLookups {
  using Stored = StoredType;

  RowNumbers rows;
  const Stored* table;
  const float* scale;
  int64_t dim;
  int64_t count;
  int64_t distance;

  TableLookups(const GatherArguments& arguments, const float* scale_of_lookups)
      : rows(arguments.rows, arguments.row_type),
        table(static_cast<const Stored*>(arguments.table)),
        scale(scale_of_lookups),
        dim(arguments.dim),
        count(arguments.count),
        distance(prefetch_distance(arguments.dim * static_cast<int64_t>(sizeof(Stored)))) {}

  const Stored* row(int64_t i) const { return table + rows[i] * dim; }
  float weight(int64_t i) const { return scale == nullptr ? 1.0f : scale[i]; }
  void prefetch(int64_t i) const {
    if (i + distance < count) {
      RECSYS_ISA::prefetch(row(i + distance), dim * static_cast<int64_t>(sizeof(Stored)));
    }
  }
};

template <typename Stored, typename Output>
void gather_rows(const GatherArguments& arguments, bool streaming, int64_t begin, int64_t end) {
  const TableLookups<Stored> lookups(arguments, nullptr);
  const int dim = arguments.dim;
  Output* to = static_cast<Output*>(arguments.output) + begin * dim;
  for (int64_t i = begin; i < end; ++i, to += dim) {
    lookups.prefetch(i);
    const Stored* from = lookups.row(i);
    if (streaming) {
      for (int column = 0; column < dim; column += kLanes<float>) {
        stream(to + column, load(from + column));
      }
    } else {
      for_each_columns(0, dim, [&](auto columns) { columns.write(to, columns.read(from)); });
    }
  }
  if (streaming) {
    stream_fence();
  }
}

inline void gather_range(const GatherArguments& arguments, bool streaming, int64_t begin,
                         int64_t end) {
  with_stored(arguments.table_dtype, arguments.output_dtype, [&](auto stored, auto output) {
    gather_rows<decltype(stored), decltype(output)>(arguments, streaming, begin, end);
  });
}

inline void bag_range(const BagArguments& arguments, int64_t begin, int64_t end) {
  with_stored(arguments.lookup.table_dtype, arguments.lookup.output_dtype,
              [&](auto stored, auto output) {
                const TableLookups<decltype(stored)> lookups(arguments.lookup, arguments.scale);
                const int dim = arguments.lookup.dim;
                auto* to = static_cast<decltype(output)*>(arguments.lookup.output);
                for (int64_t bag = begin; bag < end; ++bag) {
                  sum_rows(lookups, arguments.bag_offsets[bag], arguments.bag_offsets[bag + 1], dim,
                           to + bag * dim);
                }
              });
}

}  // namespace recsys::cpu::RECSYS_ISA
