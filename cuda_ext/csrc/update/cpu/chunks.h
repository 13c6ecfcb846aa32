// SPDX-License-Identifier: Apache-2.0
// The update of table rows from sorted lookups, in chunks of kUpdateChunk.
//
// The lookups of a row are summed in parts of kUpdateChunk, counted from its first lookup, so that
// the bits of its sum depend on no other row. A row of one part is summed and written at once. A
// longer one leaves the sums of its parts in the workspace, each with the chunk in which the part
// begins: the first part in the chunk's `tail`, a later one in its `head`. The chunk in which the
// row begins then adds them in order and writes the row. So all threads share hot rows, and sums
// follow the order of the lookups.
#pragma once

#include <algorithm>
#include <type_traits>

#include "../../cpu/weighted_sum.h"
#include "../../lookup/cpu/joint_rows.h"
#include "../update_arguments.h"
#include "apply_rule.h"

namespace recsys::cpu::RECSYS_ISA {

// The gradient rows of sorted lookups.
template <typename StoredType, typename Rule, typename Row>
struct GradientLookups {
  using Stored = StoredType;

  const UpdateArguments& arguments;
  RowNumbers rows;
  int64_t distance;

  explicit GradientLookups(const UpdateArguments& update)
      : arguments(update),
        rows(update.rows, update.row_type),
        distance(prefetch_distance(update.dim * int64_t{4})) {}

  const Stored* row(int64_t i) const {
    const int64_t position = arguments.positions[i];
    const int64_t source = arguments.source == nullptr ? position : arguments.source[position];
    return static_cast<const Stored*>(arguments.gradients) + source * arguments.dim;
  }
  float weight(int64_t i) const {
    return arguments.scale == nullptr ? 1.0f : arguments.scale[arguments.positions[i]];
  }
  void prefetch(int64_t i) const {
    const int64_t later = i + distance;
    if (later < arguments.count) {
      RECSYS_ISA::prefetch(row(later), arguments.dim * static_cast<int64_t>(sizeof(Stored)));
      Row::prefetch(arguments, rows[later]);
      prefetch_state<Rule>(arguments, rows[later]);
    }
  }
};

inline float* head_sum(const UpdateArguments& arguments, int64_t chunk) {
  return static_cast<float*>(arguments.workspace) + 2 * chunk * arguments.dim;
}

inline float* tail_sum(const UpdateArguments& arguments, int64_t chunk) {
  return head_sum(arguments, chunk) + arguments.dim;
}

inline int64_t end_of_chunk(const UpdateArguments& arguments, int64_t chunk) {
  const int64_t end = (chunk + 1) * kUpdateChunk;
  return end < arguments.count ? end : arguments.count;
}

// The first lookup of the row that lookup `i` belongs to.
inline int64_t first_lookup(const RowNumbers& rows, int64_t i) {
  const int64_t row = rows[i];
  int64_t before = -1;  // the last lookup known to belong to a lower row
  while (i - before > 1) {
    const int64_t middle = before + (i - before) / 2;
    (rows[middle] == row ? i : before) = middle;
  }
  return i;
}

// The end of the part of a row that begins at lookup `first`.
inline int64_t end_of_part(const UpdateArguments& arguments, const RowNumbers& rows,
                           int64_t first) {
  const int64_t row = rows[first];
  const int64_t limit = std::min(first + kUpdateChunk, arguments.count);
  int64_t end = first + 1;
  while (end < limit && rows[end] == row) ++end;
  return end;
}

template <typename Rule, typename Row, typename Gradient>
void update_chunk(const UpdateArguments& arguments, const StepScalars& scalars, int64_t chunk) {
  const GradientLookups<Gradient, Rule, Row> lookups(arguments);
  const RowNumbers& rows = lookups.rows;
  const int64_t begin = chunk * kUpdateChunk;
  const int64_t end = end_of_chunk(arguments, chunk);
  int64_t next = begin;
  if (begin > 0 && rows[begin - 1] == rows[begin]) {
    const int64_t row = rows[begin];
    const int64_t before = (begin - first_lookup(rows, begin)) % kUpdateChunk;
    const int64_t part = before == 0 ? begin : begin + kUpdateChunk - before;
    if (part < arguments.count && rows[part] == row) {
      sum_rows(lookups, part, end_of_part(arguments, rows, part), arguments.dim,
               head_sum(arguments, chunk));
    }
    while (next < end && rows[next] == row) ++next;
  }
  for (int64_t first = next; first < end; first = next) {
    const int64_t row = rows[first];
    next = end_of_part(arguments, rows, first);
    const float* gradient = tail_sum(arguments, chunk);
    const bool is_longer = next < arguments.count && rows[next] == row;
    const bool as_it_is =
        std::is_same_v<Gradient, float> && next == first + 1 && arguments.scale == nullptr;
    if (as_it_is) {
      lookups.prefetch(first);
      gradient = reinterpret_cast<const float*>(lookups.row(first));
    } else {
      sum_rows(lookups, first, next, arguments.dim, tail_sum(arguments, chunk));
    }
    if (!is_longer) {
      apply_rule<Rule>(arguments, scalars, row, Row(arguments, row), gradient);
    }
  }
}

template <typename Rule, typename Row>
void update_chunks_of(const UpdateArguments& arguments, int64_t begin, int64_t end) {
  const StepScalars scalars = scalars_of<Rule>(arguments);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    if (arguments.gradient_dtype == Dtype::kBFloat16) {
      update_chunk<Rule, Row, BFloat16>(arguments, scalars, chunk);
    } else {
      update_chunk<Rule, Row, float>(arguments, scalars, chunk);
    }
  }
}

template <typename Rule, typename Row>
void update_long_rows_of(const UpdateArguments& arguments, int64_t begin, int64_t end) {
  const StepScalars scalars = scalars_of<Rule>(arguments);
  const RowNumbers rows(arguments.rows, arguments.row_type);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t row = rows[end_of_chunk(arguments, chunk) - 1];
    int64_t first = end_of_chunk(arguments, chunk) - 1;
    while (first >= chunk * kUpdateChunk && first > 0 && rows[first - 1] == row) --first;
    int64_t part = first + kUpdateChunk;
    if (first < chunk * kUpdateChunk || part >= arguments.count || rows[part] != row) {
      continue;  // the row begins in an earlier chunk, or has one part
    }
    float* total = tail_sum(arguments, chunk);
    for (; part < arguments.count && rows[part] == row; part += kUpdateChunk) {
      const float* head = head_sum(arguments, part / kUpdateChunk);
      for_each_columns(0, arguments.dim, [&](auto columns) {
        columns.write(total, columns.read(total) + columns.read(head));
      });
    }
    apply_rule<Rule>(arguments, scalars, row, Row(arguments, row), total);
  }
}

// Calls body(rule, row format) with null pointers to the types; the ops accept only these rules.
template <typename Body>
inline void with_rule_and_format(const UpdateArguments& arguments, const Body& body) {
  const bool is_known = with_rule<VectorMath>(arguments.rule, [&](auto rule) {
    if (arguments.table_dtype == Dtype::kBFloat16) {
      body(&rule, static_cast<StochasticBFloat16Row*>(nullptr));
    } else {
      body(&rule, static_cast<Float32Row*>(nullptr));
    }
  });
  if (!is_known) {
    __builtin_trap();
  }
}

inline void update_chunks_range(const UpdateArguments& arguments, int64_t begin, int64_t end) {
  with_rule_and_format(arguments, [&](auto* rule, auto* row) {
    update_chunks_of<std::remove_pointer_t<decltype(rule)>, std::remove_pointer_t<decltype(row)>>(
        arguments, begin, end);
  });
}

inline void update_long_rows_range(const UpdateArguments& arguments, int64_t begin, int64_t end) {
  with_rule_and_format(arguments, [&](auto* rule, auto* row) {
    update_long_rows_of<std::remove_pointer_t<decltype(rule)>,
                        std::remove_pointer_t<decltype(row)>>(arguments, begin, end);
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
