// SPDX-License-Identifier: Apache-2.0
// A batch of rows: where their fields end in the text, and their values.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "memory.h"
#include "presence.h"
#include "rating_fields.h"
#include "row_format.h"
#include "typed_fields.h"

namespace clicks {

constexpr size_t kPadding = 64;  // bytes after the text that must be readable

struct RejectedRow {
  uint64_t offset;  // first byte of the row in the text
  uint64_t line;    // lines before the row
  uint32_t length;  // bytes without the line end
  RejectReason reason;
  uint32_t field;  // the leftmost wrong one, the label is 0; of kColumns, the number of fields
};

// Elements of the lists of a column.
struct ListElements {
  std::vector<uint32_t> narrow;  // a column of wide keys uses `wide` instead
  std::vector<WideKey> wide;
  std::vector<float> weights;  // empty if the rule has none

  size_t size() const { return std::max(narrow.size(), wide.size()); }
  void clear() {  // keeps the memory for the next batch
    narrow.clear();
    wide.clear();
    weights.clear();
  }
};

// The lists of a column in a batch of rows.
struct ListColumn {
  ListElements* elements;
  uint32_t begin[kBatchRows];
  uint32_t end[kBatchRows];
};

// Where the value of a row and a column is in a batch.
struct CellOrder {
  size_t row_step;
  size_t column_step;

  // Rows of Criteo's log are parsed eight columns at a time, other rows column by column.
  CellOrder(const RowFormat& format, size_t num_columns)
      : row_step(format.is_criteo ? num_columns : 1),
        column_step(format.is_criteo ? 1 : kBatchRows) {}
  CLICKS_INLINE size_t operator()(size_t row, size_t column) const {
    return row * row_step + column * column_step;
  }
};

// A batch of rows of a format, with room for kBatchRows.
struct RowBatch {
  int rows = 0;
  uint8_t label[kBatchRows] = {};
  Presence numerical_present;
  Presence id_present;                    // of categorical columns, then of the bins of numbers
  uint64_t split_value[kBatchRows] = {};  // see SplitRule; not read if its kind is kNone
  int64_t group[kBatchRows] = {};         // 63 bits of a hash, -1 if missing; unused without groups
  size_t numericals;                      // columns of `numerical` and `decimal`
  size_t categoricals;
  CellOrder number_at;
  CellOrder category_at;
  Pages<int32_t> numerical;     // in the order of `number_at`
  Pages<double> decimal;        // like `numerical`, for columns of decimal numbers
  Pages<uint32_t> categorical;  // in the order of `category_at`
  Pages<WideKey> keys;          // like `categorical`, for columns of wide keys; all have value 1
  KeyArena unquoted;            // fields with quotes in them
  std::vector<ListElements> elements;
  std::vector<ListColumn> lists;  // [num_lists], of these elements or another batch's
  std::vector<Rating> ratings;    // [kBatchRows] of ratings, else none

  explicit RowBatch(const RowFormat& format)
      : numericals(format.num_numerical),
        categoricals(format.num_categorical),
        number_at(format, numericals),
        category_at(format, categoricals),
        numerical(kBatchRows * numericals + 1),
        decimal(kBatchRows * numericals + 1),
        categorical(kBatchRows * categoricals + 1),
        keys(kBatchRows * categoricals + 1, Pages<WideKey>::kOnUse),
        elements(format.num_lists),
        lists(format.num_lists),
        ratings(format.has_ratings() ? kBatchRows : 0) {
    for (size_t l = 0; l < lists.size(); ++l) lists[l].elements = &elements[l];
  }

  // Takes the rows of a batch of the same format that have these ascending numbers. The batch may
  // be this one.
  void take(const RowBatch& source, const int* numbers, int count) {
    rows = count;
    take_values(source.label, label, numbers);
    numerical_present.take(source.numerical_present, numericals, numbers, count);
    id_present.take(source.id_present, categoricals + numericals, numbers, count);
    take_values(source.split_value, split_value, numbers);
    take_values(source.group, group, numbers);
    if (!ratings.empty()) take_values(source.ratings.data(), ratings.data(), numbers);
    for (size_t l = 0; l < lists.size(); ++l) {
      lists[l].elements = source.lists[l].elements;
      take_values(source.lists[l].begin, lists[l].begin, numbers);
      take_values(source.lists[l].end, lists[l].end, numbers);
    }
    take_columns(source.numerical, numerical, number_at, numericals, numbers);
    take_columns(source.decimal, decimal, number_at, numericals, numbers);
    take_columns(source.categorical, categorical, category_at, categoricals, numbers);
    take_columns(source.keys, keys, category_at, categoricals, numbers);
  }

 private:
  template <typename T>
  void take_values(const T* source, T* target, const int* numbers) const {
    for (int r = 0; r < rows; ++r) target[r] = source[numbers[r]];
  }
  template <typename T>
  void take_columns(const Pages<T>& source, Pages<T>& target, const CellOrder& at, size_t columns,
                    const int* numbers) const {
    for (size_t c = 0; c < columns; ++c) {
      for (int r = 0; r < rows; ++r) {
        target[at(static_cast<size_t>(r), c)] = source[at(static_cast<size_t>(numbers[r]), c)];
      }
    }
  }
};

// Ends of the fields in the rows of a batch that have the right number of fields.
struct FieldEnds {
  int rows = 0;
  bool has_quotes = false;  // whether a field may begin with the format's quote
  uint32_t start[kBatchRows];
  uint32_t line[kBatchRows];
  uint32_t* ends;  // [size_of_ends()]
};

// Larger than needed, because the ends in a chunk of 64 bytes are appended without a size check.
constexpr size_t size_of_ends(size_t num_fields) {
  return kBatchRows * num_fields + num_fields + 2 * 64;
}

}  // namespace clicks
