// SPDX-License-Identifier: Apache-2.0
// The update of table rows from sorted lookups, in chunks of kUpdateChunk.
//
// A row whose lookups lie in one chunk is summed and written at once. A row that crosses chunks
// leaves one sum per chunk in the workspace: in the chunk's `head` if it is the first row there, in
// its `tail` if it is the last. The chunk in which it begins then adds them in order and writes the
// row. So all threads share hot rows, and sums follow the order of the lookups.
#pragma once

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

template <typename Rule, typename Row, typename Gradient>
void update_chunk(const UpdateArguments& arguments, const StepScalars& scalars, int64_t chunk) {
  const GradientLookups<Gradient, Rule, Row> lookups(arguments);
  const RowNumbers& rows = lookups.rows;
  const int64_t begin = chunk * kUpdateChunk;
  const int64_t end = end_of_chunk(arguments, chunk);
  int64_t next = begin;
  for (int64_t first = begin; first < end; first = next) {
    const int64_t row = rows[first];
    do {
      ++next;
    } while (next < end && rows[next] == row);
    if (first == begin && first > 0 && rows[first - 1] == row) {
      sum_rows(lookups, first, next, arguments.dim, head_sum(arguments, chunk));
      continue;
    }
    const float* gradient = tail_sum(arguments, chunk);
    const bool crosses = next == end && next < arguments.count && rows[next] == row;
    const bool as_it_is = std::is_same_v<Gradient, float> && next == first + 1 && !crosses &&
                          arguments.scale == nullptr;
    if (as_it_is) {
      lookups.prefetch(first);
      gradient = reinterpret_cast<const float*>(lookups.row(first));
    } else {
      sum_rows(lookups, first, next, arguments.dim, tail_sum(arguments, chunk));
    }
    if (!crosses) {
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
void update_crossing_rows_of(const UpdateArguments& arguments, int64_t begin, int64_t end) {
  const StepScalars scalars = scalars_of<Rule>(arguments);
  const RowNumbers rows(arguments.rows, arguments.row_type);
  const auto continues = [&](int64_t chunk) {
    const int64_t last = end_of_chunk(arguments, chunk);
    return last < arguments.count && rows[last] == rows[last - 1];
  };
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t first = chunk * kUpdateChunk;
    const int64_t row = rows[end_of_chunk(arguments, chunk) - 1];
    const bool begins_here = rows[first] != row || first == 0 || rows[first - 1] != row;
    if (!begins_here || !continues(chunk)) {
      continue;
    }
    float* total = tail_sum(arguments, chunk);
    int64_t later = chunk;
    do {
      ++later;
      const float* head = head_sum(arguments, later);
      for_each_columns(0, arguments.dim, [&](auto columns) {
        columns.write(total, columns.read(total) + columns.read(head));
      });
    } while (rows[end_of_chunk(arguments, later) - 1] == row && continues(later));
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

inline void update_crossing_rows_range(const UpdateArguments& arguments, int64_t begin,
                                       int64_t end) {
  with_rule_and_format(arguments, [&](auto* rule, auto* row) {
    update_crossing_rows_of<std::remove_pointer_t<decltype(rule)>,
                            std::remove_pointer_t<decltype(row)>>(arguments, begin, end);
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
