// SPDX-License-Identifier: Apache-2.0
// Reads of table rows: gather, bags, and the gradient of the bags' scale.
#pragma once

#include "../../cpu/weighted_sum.h"
#include "../kernels.h"
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
  Compute<Stored> weight(int64_t i) const { return scale == nullptr ? 1.0f : scale[i]; }
  void prefetch(int64_t i) const {
    if (i + distance < count) {
      RECSYS_ISA::prefetch(row(i + distance), dim * static_cast<int64_t>(sizeof(Stored)));
    }
  }
};

// Calls body with a value of the table's and one of the output's type.
template <typename Body>
inline void with_lookup_types(Dtype table, Dtype output, const Body& body) {
  const auto with_output = [&](auto stored) {
    return output == Dtype::kBFloat16 ? body(stored, BFloat16{}) : body(stored, float{});
  };
  switch (table) {
    case Dtype::kFloat64:
      return body(double{}, double{});
    case Dtype::kBFloat16:
      return with_output(BFloat16{});
    default:
      return with_output(float{});
  }
}

template <typename Stored, typename Output>
void gather_rows(const GatherArguments& arguments, bool streaming, int64_t begin, int64_t end) {
  const TableLookups<Stored> lookups(arguments, nullptr);
  const int dim = arguments.dim;
  Output* to = static_cast<Output*>(arguments.output) + begin * dim;
  for (int64_t i = begin; i < end; ++i, to += dim) {
    lookups.prefetch(i);
    const Stored* from = lookups.row(i);
    if (streaming) {
      for (int column = 0; column < dim; column += kStep<Stored>) {
        stream(to + column, load(from + column));
      }
    } else {
      for_each_columns<kStep<Stored>>(0, dim,
                                      [&](auto columns) { columns.write(to, columns.read(from)); });
    }
  }
  if (streaming) {
    stream_fence();
  }
}

inline void gather_range(const GatherArguments& arguments, bool streaming, int64_t begin,
                         int64_t end) {
  with_lookup_types(arguments.table_dtype, arguments.output_dtype, [&](auto stored, auto output) {
    gather_rows<decltype(stored), decltype(output)>(arguments, streaming, begin, end);
  });
}

inline void bag_range(const BagArguments& arguments, int64_t begin, int64_t end) {
  with_lookup_types(
      arguments.lookup.table_dtype, arguments.lookup.output_dtype, [&](auto stored, auto output) {
        const TableLookups<decltype(stored)> lookups(arguments.lookup, arguments.scale);
        const int dim = arguments.lookup.dim;
        auto* to = static_cast<decltype(output)*>(arguments.lookup.output);
        for (int64_t bag = begin; bag < end; ++bag) {
          sum_rows(lookups, arguments.bag_offsets[bag], arguments.bag_offsets[bag + 1], dim,
                   to + bag * dim);
        }
      });
}

inline void bag_scale_gradient_range(const BagScaleGradientArguments& arguments, int64_t begin,
                                     int64_t end) {
  with_lookup_types(
      arguments.lookup.table_dtype, arguments.gradient_dtype, [&](auto stored, auto gradient) {
        using Stored = decltype(stored);
        const TableLookups<Stored> lookups(arguments.lookup, nullptr);
        const int dim = arguments.lookup.dim;
        const auto* gradients = static_cast<const decltype(gradient)*>(arguments.gradient);
        float* output = static_cast<float*>(arguments.lookup.output);
        for (int64_t i = begin; i < end; ++i) {
          lookups.prefetch(i);
          const auto* bag = gradients + arguments.source[i] * static_cast<int64_t>(dim);
          Vector<Compute<Stored>> products = {};
          for_each_columns<kStep<Stored>>(0, dim, [&](auto columns) {
            products += columns.read(bag) * columns.read(lookups.row(i));
          });
          output[i] = static_cast<float>(sum(products));
        }
      });
}

}  // namespace recsys::cpu::RECSYS_ISA
