// SPDX-License-Identifier: Apache-2.0
// Fields of a raw row, and the reasons to reject one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "number.h"
#include "timestamp.h"

namespace clicks {

constexpr int kNumericals = 13;
constexpr int kCategoricals = 26;
constexpr int kFields = 1 + kNumericals + kCategoricals;
constexpr int kMaxColumns = 64;  // numerical ones, and those of ids: a bit of each tells presence

enum RejectReason : uint32_t {
  kColumns,
  kLabel,
  kInteger,
  kHex,
  kEncoding,
  kString,
  kNumber,
  kQuote,
  kTime,
  kList,
  kNumReasons
};

enum FieldType : uint8_t { kHexadecimal, kText, kWholeNumber, kDecimal };

enum Role : uint8_t {
  kIgnored,
  kLabelRole,
  kNumericalRole,
  kCategoricalRole,
  kTimestampRole,
  kListRole
};

// How the lists of a column are read.
struct ListRule {
  uint32_t separator;
  uint32_t weight_separator;  // 0: elements have no weights
  uint32_t max_length;        // of a longer one the last elements are kept
  uint32_t keeps_first;       // or the first
  uint32_t takes_mean;        // their vectors are averaged, not summed
};

constexpr int kNumSplits = 3;  // training, validation, test
constexpr uint32_t kNoField = ~uint32_t{0};

// How each row is given to a split: by its value, a time or a hash of 63 bits.
struct SplitRule {
  enum Kind : uint32_t { kNone, kByTime, kAtRandom };

  uint32_t kind;
  uint32_t field;  // whose time, or hash, it is; kNoField: the hash of the row
  uint64_t seed;
  uint64_t cuts[kNumSplits - 1];  // the least values of validation and test rows
  uint32_t counts_train;          // categories are counted in training rows alone

  bool is_by_time_of(uint32_t f) const { return kind == kByTime && f == field; }
  int split_of(uint64_t value) const { return (value >= cuts[0]) + (value >= cuts[1]); }
};

// Fields of a row: as binding.py hands them over.
struct RowFormat {
  uint32_t delimiter;
  uint32_t quote;  // 0: a quote is any character
  uint32_t num_fields;
  uint32_t num_numerical;
  uint32_t num_categorical;
  uint32_t is_criteo;   // the fields of a Criteo log, in their order
  uint32_t has_label;   // of a Criteo log; a row without has an empty one before its first byte
  uint32_t has_header;  // the first line of a file is none of the rows
  uint32_t other_is_negative;  // a label that is none of the positive texts
  // [num_fields] role of each field, and its number among those of the role
  const uint8_t* roles;
  const uint8_t* columns;
  // Texts of a label, and of a feature those that mean that it is missing, besides nothing at all:
  // their number, then each after its length. texts_at: [num_fields] where those of a field begin;
  // of a label the positive ones, then the negative ones. Not read of a Criteo log.
  const uint8_t* texts;
  const uint32_t* texts_at;
  // [num_fields] type of a feature, and the buckets that a categorical one is hashed to; 0: its
  // categories are kept as they are.
  const uint8_t* types;
  const uint64_t* buckets;
  const NumberRule* rules;  // [num_fields] of decimal numbers
  const TimeRule* times;    // [num_fields] of times
  const ListRule* lists;    // [num_fields] of lists
  uint32_t num_lists;
  SplitRule split;
  uint32_t group_field;  // hashed to the group of a row; kNoField: none
};

constexpr uint32_t kMaxTextBytes = 1024;
constexpr uint32_t kMaxListLength = 10000;
constexpr uint32_t kMaxFields = 1000;

// Transforms of the numerical features that are decimal numbers, each with its column.
inline std::vector<std::pair<size_t, NumberRule>> decimal_rules(const RowFormat& format) {
  std::vector<std::pair<size_t, NumberRule>> rules;
  for (uint32_t f = 0; f < format.num_fields && !format.is_criteo; ++f) {
    if (format.roles[f] == kNumericalRole && format.types[f] == kDecimal) {
      rules.emplace_back(format.columns[f], format.rules[f]);
    }
  }
  return rules;
}

// Whether the categories of a field are texts or integers as they are, not numbers of 32 bits.
inline bool has_wide_keys(const RowFormat& format, uint32_t f) {
  return !format.is_criteo &&
         (format.roles[f] == kCategoricalRole || format.roles[f] == kListRole) &&
         format.types[f] != kHexadecimal && format.buckets[f] == 0;
}

struct CriteoFields {
  uint8_t roles[kFields];
  uint8_t columns[kFields];
};

constexpr CriteoFields make_criteo_fields() {
  CriteoFields fields{};
  fields.roles[0] = kLabelRole;
  for (int f = 1; f < kFields; ++f) {
    const bool is_numerical = f <= kNumericals;
    fields.roles[f] = is_numerical ? kNumericalRole : kCategoricalRole;
    fields.columns[f] = static_cast<uint8_t>(f - 1 - (is_numerical ? 0 : kNumericals));
  }
  return fields;
}

constexpr CriteoFields kCriteoFields = make_criteo_fields();
constexpr RowFormat make_unlabelled_criteo() {
  RowFormat format{};
  format.delimiter = '\t';
  format.num_fields = kFields;
  format.num_numerical = kNumericals;
  format.num_categorical = kCategoricals;
  format.is_criteo = 1;
  format.roles = kCriteoFields.roles;
  format.columns = kCriteoFields.columns;
  format.group_field = kNoField;
  return format;
}

constexpr RowFormat kUnlabelledCriteo = make_unlabelled_criteo();

}  // namespace clicks
