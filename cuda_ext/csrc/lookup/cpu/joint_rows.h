// SPDX-License-Identifier: Apache-2.0
// Ids to rows of the joint table, and the search for rows outside it. Compiled once for each
// instruction set: the inner loops have no branches, so that the compiler turns them into vectors.
#pragma once

#include "../../cpu/vector.h"
#include "../lookup_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr int64_t kNoBadPosition = INT64_MAX;

// Row numbers of either type.
struct RowNumbers {
  const void* rows;
  bool wide;

  RowNumbers(const void* data, IndexType type) : rows(data), wide(type == IndexType::kInt64) {}

  int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(rows)[i] : static_cast<const int32_t*>(rows)[i];
  }
};

// Row of an id, or -1 if it is outside its table.
template <typename Row>
inline Row joint_row(int64_t id, int64_t offset, int64_t size, bool hash_indices) {
  if (hash_indices && size > 0 && (id < 0 || id >= size)) {
    id %= size;
    id += id < 0 ? size : 0;
  }
  return id < 0 || id >= size ? Row{-1} : static_cast<Row>(offset + id);
}

// One id per bag: whole samples in the middle of the range, whose features need no division.
template <typename Id, typename Row>
int64_t joint_rows_one_hot(const JointRowsArguments& arguments, int64_t begin, int64_t end) {
  const Id* ids = static_cast<const Id*>(arguments.ids);
  Row* rows = static_cast<Row*>(arguments.rows);
  const int64_t num_features = arguments.num_features;
  int64_t bad = kNoBadPosition;
  int64_t feature = begin % num_features;
  for (int64_t start = begin; start < end;) {
    const int64_t remaining = num_features - feature;
    const int64_t stop = start + (remaining < end - start ? remaining : end - start);
    const int64_t* offsets = arguments.offsets + feature;
    bool any_bad = false;
    if (arguments.hash_indices) {
      for (int64_t i = start; i < stop; ++i) {
        const int64_t f = i - start;
        rows[i] = joint_row<Row>(ids[i], offsets[f], offsets[f + 1] - offsets[f], true);
        any_bad |= rows[i] < 0;
      }
    } else {
      for (int64_t f = 0; f < stop - start; ++f) {
        const int64_t id = ids[start + f];
        const bool outside =
            static_cast<uint64_t>(id) >= static_cast<uint64_t>(offsets[f + 1] - offsets[f]);
        any_bad |= outside;
        rows[start + f] = static_cast<Row>(outside ? -1 : offsets[f] + id);
      }
    }
    for (int64_t i = start; any_bad && bad == kNoBadPosition && i < stop; ++i) {
      bad = rows[i] < 0 ? i : bad;
    }
    start = stop;
    feature = 0;
  }
  return bad;
}

template <typename Id, typename Row>
int64_t joint_rows_of_bags(const JointRowsArguments& arguments, int64_t begin, int64_t end) {
  const Id* ids = static_cast<const Id*>(arguments.ids);
  Row* rows = static_cast<Row*>(arguments.rows);
  int64_t bad = kNoBadPosition;
  for (int64_t bag = begin; bag < end; ++bag) {
    const int64_t* offsets = arguments.offsets + bag % arguments.num_features;
    const int64_t size = offsets[1] - offsets[0];
    for (int64_t i = arguments.bag_offsets[bag]; i < arguments.bag_offsets[bag + 1]; ++i) {
      rows[i] = joint_row<Row>(ids[i], offsets[0], size, arguments.hash_indices);
      bad = rows[i] < 0 && i < bad ? i : bad;
    }
  }
  return bad;
}

inline int64_t joint_rows_range(const JointRowsArguments& arguments, int64_t begin, int64_t end) {
  return with_index_type(arguments.id_type, [&](auto id) {
    const auto of_types = [&](auto row) {
      using Id = decltype(id);
      using Row = decltype(row);
      return arguments.bag_offsets == nullptr ? joint_rows_one_hot<Id, Row>(arguments, begin, end)
                                              : joint_rows_of_bags<Id, Row>(arguments, begin, end);
    };
    return arguments.row_type == IndexType::kInt32 ? of_types(int32_t{}) : of_types(int64_t{});
  });
}

template <typename Row, typename Unsigned>
int64_t first_bad_row_of_type(const void* data, int64_t num_table_rows, int64_t begin,
                              int64_t end) {
  constexpr int64_t kBlock = 1024;
  const Row* rows = static_cast<const Row*>(data);
  const bool all_fit = static_cast<uint64_t>(num_table_rows) > static_cast<Unsigned>(-1);
  const Unsigned limit =
      all_fit ? static_cast<Unsigned>(-1) : static_cast<Unsigned>(num_table_rows);
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t stop = start + kBlock < end ? start + kBlock : end;
    Unsigned any_bad = 0;
    for (int64_t i = start; i < stop; ++i) {
      any_bad |= static_cast<Unsigned>(rows[i]) >= limit;
    }
    for (int64_t i = start; any_bad != 0 && i < stop; ++i) {
      if (rows[i] < 0 || rows[i] >= num_table_rows) {
        return i;
      }
    }
  }
  return kNoBadPosition;
}

inline int64_t first_bad_row_range(const void* rows, IndexType type, int64_t num_table_rows,
                                   int64_t begin, int64_t end) {
  return type == IndexType::kInt32
             ? first_bad_row_of_type<int32_t, uint32_t>(rows, num_table_rows, begin, end)
             : first_bad_row_of_type<int64_t, uint64_t>(rows, num_table_rows, begin, end);
}

}  // namespace recsys::cpu::RECSYS_ISA
