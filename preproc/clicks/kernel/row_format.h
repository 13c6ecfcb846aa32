// SPDX-License-Identifier: Apache-2.0
// Fields of a raw row, and the reasons to reject a row.

#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "number.h"
#include "text_hash.h"
#include "timestamp.h"

namespace clicks {

constexpr int kNumericals = 13;
constexpr int kCategoricals = 26;
constexpr int kFields = 1 + kNumericals + kCategoricals;
constexpr int kMaxColumns = 256;  // numerical ones, and those of ids: their numbers are bytes

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
  kJson,
  kNumReasons
};

enum FieldType : uint8_t { kHexadecimal, kText, kWholeNumber, kDecimal, kDigits, kName, kToken };

enum Role : uint8_t {
  kIgnored,
  kLabelRole,
  kNumericalRole,
  kCategoricalRole,
  kTimestampRole,
  kListRole,
  kUserRole,  // this and the next ones: of ratings, see rating_rows.h
  kItemRole,
  kRatingRole
};

// How the lists of a column are read.
struct ListRule {
  uint32_t separator;
  uint32_t weight_separator;  // 0: elements have no weights
  uint32_t max_length;        // a longer list keeps its last elements
  uint32_t keeps_first;       // not 0: it keeps its first ones instead
  uint32_t takes_mean;        // their vectors are averaged, not summed
};

constexpr int kNumSplits = 3;  // training, validation, test
constexpr uint32_t kNoField = ~uint32_t{0};

// How each row is assigned to a split: by its value, a time or a hash of 63 bits.
struct SplitRule {
  enum Kind : uint32_t { kNone, kByTime, kAtRandom };

  uint32_t kind;
  uint32_t field;  // its time or hash decides; kNoField: the hash of the row does
  uint64_t seed;
  uint64_t cuts[kNumSplits - 1];  // the least values of validation and test rows

  bool is_by_time_of(uint32_t f) const { return kind == kByTime && f == field; }
  int split_of(uint64_t value) const { return (value >= cuts[0]) + (value >= cuts[1]); }
};

// A field of a row, written by preproc/clicks/kernel/packed_format.py. Positions are byte offsets
// in the texts of all fields; a text is a byte with its length, then its bytes.
struct Field {
  uint8_t role;
  uint8_t column;  // its number among the features of its role
  uint8_t type;
  uint8_t bin_column;  // for a number with bins: the column of their categories
  // Texts that stand for a missing value, besides an empty field: their number, then each. For a
  // label, the positive texts, then the negative ones.
  uint32_t texts_at;
  uint64_t buckets;  // number of them to hash categories to; 0: categories are not hashed
  NumberRule number;
  ListRule list;
  TimeRule time;
  uint32_t name_at;
  uint32_t bins_at;  // for a number with bins: its edges, each a text with a float64; else 0
  // 1 before the edges of its bins are found: the categories of `bin_column` are then the numbers
  // themselves, as float64 bits, which a scan counts.
  uint32_t lacks_edges;

  bool has_categories() const { return role == kCategoricalRole || role == kListRole; }
  // Whether its categories are texts or 64-bit integers rather than 32-bit numbers.
  bool has_wide_keys() const { return has_categories() && type != kHexadecimal && buckets == 0; }
};

static_assert(sizeof(Field) == 128, "packed_format.py writes them side by side");

constexpr uint32_t kMaxTextBytes = 1024;
constexpr uint32_t kMaxListLength = 10000;
constexpr uint32_t kMaxFields = 1000;
constexpr uint8_t kEscape = '\\';  // of the cells of a table

// What the fields of a row share; `num_fields` Fields and all texts follow.
struct RowHeader {
  uint64_t modulus;  // of the categories in the text; 0 keeps them
  int64_t minimum;   // of integers: smaller ones are raised to it, then the offset is added
  int64_t offset;
  SplitRule split;
  uint32_t group_field;  // hashed to the group of a row; kNoField: none
  uint32_t num_fields;
  uint32_t text_bytes;
  uint8_t delimiter;
  uint8_t quote;                  // 0: quotes have no meaning; in a table this is the escape
  uint8_t has_header;             // the first line of a file is a header
  uint8_t other_is_negative;      // a label other than the positive texts is negative
  uint8_t bins_numerical;         // the bins of numbers are categories too
  uint8_t missing_is_zero_after;  // a missing integer is 0.0, not the transform of 0
  uint8_t counts_train;           // categories are counted only in training rows
  uint8_t is_table;               // cells of a table: see `unescape`
  uint8_t delimiter_end;          // second byte of a delimiter such as "::"; 0: no second byte
  uint8_t is_json;                // rows are objects: see json_rows.h
  uint8_t unused[2];
};

static_assert(sizeof(RowHeader) == 80, "Fields follow at once");

// Fields of a row, and how they are read.
struct RowFormat : RowHeader {
  std::vector<Field> fields;
  std::string texts;
  std::vector<std::vector<double>> edges;  // of the bins of each field
  std::vector<uint64_t> name_hashes;       // of each field
  uint32_t num_numerical = 0;
  uint32_t num_categorical = 0;  // columns of the text with one category per row
  uint32_t num_lists = 0;
  bool is_criteo = false;  // the fields of a Criteo log, in their order
  bool has_label = true;   // of a Criteo log; a row without has an empty one before its first byte

  // Reads a packed format; throws if its fields contradict each other.
  RowFormat(const void* packed, uint64_t bytes) {
    const auto* at = static_cast<const char*>(packed);
    if (bytes < sizeof(RowHeader)) throw damaged();
    std::memcpy(static_cast<RowHeader*>(this), at, sizeof(RowHeader));
    at += sizeof(RowHeader);
    if (num_fields < 1 || num_fields > kMaxFields ||
        bytes != sizeof(RowHeader) + num_fields * sizeof(Field) + text_bytes) {
      throw damaged();
    }
    fields.resize(num_fields);
    std::memcpy(fields.data(), at, num_fields * sizeof(Field));
    texts.assign(at + num_fields * sizeof(Field), text_bytes);
    check();
    read_edges();
    for (uint32_t f = 0; f < num_fields; ++f) {
      const uint8_t* const name =
          reinterpret_cast<const uint8_t*>(texts.data()) + fields[f].name_at;
      name_hashes.push_back(TextHash::of(name + 1, *name));
    }
    find_criteo();
  }

  static std::runtime_error damaged() {
    return std::runtime_error("is damaged or of another release");
  }

  const uint8_t* texts_of(const Field& field) const {
    return reinterpret_cast<const uint8_t*>(texts.data()) + field.texts_at;
  }
  std::string name(uint32_t f) const {
    const uint32_t at = fields[f].name_at;
    return texts.substr(at + 1, static_cast<uint8_t>(texts[at]));
  }
  uint32_t delimiter_bytes() const { return delimiter_end == 0 ? 1 : 2; }
  bool has_ratings() const {
    return std::any_of(fields.begin(), fields.end(),
                       [](const Field& field) { return field.role == kUserRole; });
  }
  // Index of the first field that a row has.
  uint32_t first_field() const { return has_label ? 0 : 1; }

  // Only the features of a row, as cells of a table.
  RowFormat of_features() const {
    RowFormat format = *this;
    if (is_criteo) return format;
    format.fields.clear();
    for (const Field& field : fields) {
      if (field.role != kIgnored) format.fields.push_back(field);
    }
    format.num_fields = static_cast<uint32_t>(format.fields.size());
    format.read_edges();
    format.delimiter = '\t';
    format.delimiter_end = 0;
    format.quote = kEscape;
    format.is_table = 1;
    format.is_json = 0;
    return format;
  }

  // Whether rows can only be scanned because the bins of a number have no edges yet.
  bool lacks_edges() const {
    return std::any_of(fields.begin(), fields.end(),
                       [](const Field& field) { return field.lacks_edges != 0; });
  }

  // Transforms of the decimal numerical features, each with its column.
  std::vector<std::pair<size_t, NumberRule>> decimal_rules() const {
    std::vector<std::pair<size_t, NumberRule>> rules;
    for (const Field& field : fields) {
      if (field.role == kNumericalRole && field.type == kDecimal) {
        rules.emplace_back(field.column, field.number);
      }
    }
    return rules;
  }

 private:
  // Checks what the rest of the kernel relies on, and counts the features.
  void check() {
    const auto is_int32 = [](int64_t x) { return x >= INT32_MIN && x <= INT32_MAX; };
    // The logarithm's argument is at least their sum.
    if (!is_int32(minimum) || !is_int32(offset) || minimum + offset < 1) throw damaged();
    const auto is_field = [&](uint32_t f) { return f == kNoField || f < num_fields; };
    if (split.kind > SplitRule::kAtRandom || !is_field(split.field) || !is_field(group_field)) {
      throw damaged();
    }
    std::bitset<kMaxColumns> used[3];  // columns of categorical and numerical features, of lists
    for (const Field& field : fields) {
      skip_text(field.name_at);
      const size_t end = skip_texts(field.texts_at);
      if (field.role == kLabelRole) skip_texts(end);
      if (field.bins_at != 0 && field.role != kNumericalRole) throw damaged();
      if (field.lacks_edges > (field.bins_at != 0)) throw damaged();
      if (field.role == kLabelRole || field.role == kIgnored) continue;
      if (field.role >= kUserRole && field.role <= kRatingRole) continue;
      const bool is_number = field.role == kNumericalRole, is_time = field.role == kTimestampRole;
      const bool is_list = field.role == kListRole;
      const uint32_t count = is_time ? time_features(field.time) : 1;
      if (field.role > kListRole || field.type > kDecimal ||
          (!is_time && field.type == (is_number ? kText : kDecimal)) ||
          (is_list && (field.list.max_length < 1 || field.list.max_length > kMaxListLength)) ||
          field.column + count > kMaxColumns || field.time.zone_minutes <= -24 * 60 ||
          field.time.zone_minutes >= 24 * 60) {
        throw damaged();
      }
      for (uint32_t c = field.column; c < field.column + count; ++c)
        used[is_list ? 2 : is_number].set(c);
      (is_list ? num_lists : is_number ? num_numerical : num_categorical) += count;
      if (field.bins_at != 0) {
        skip_texts(field.bins_at);
        used[0].set(field.bin_column);
        ++num_categorical;
      }
    }
    // Column numbers must have no gaps and no duplicates.
    const uint32_t counts[] = {num_categorical, num_numerical, num_lists};
    for (int role = 0; role < 3; ++role) {
      if (counts[role] > kMaxColumns || (~used[role] << (kMaxColumns - counts[role])).any()) {
        throw damaged();
      }
    }
    const uint32_t ids = num_categorical + (bins_numerical ? num_numerical : 0) + num_lists;
    if (ids > kMaxColumns) throw damaged();
  }

  void read_edges() {
    edges.assign(fields.size(), {});
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].bins_at == 0) continue;
      const char* at = texts.data() + fields[f].bins_at;
      edges[f].resize(static_cast<uint8_t>(*at++));
      for (double& edge : edges[f]) {
        if (static_cast<uint8_t>(*at) != sizeof(edge)) throw damaged();
        std::memcpy(&edge, at + 1, sizeof(edge));
        at += 1 + sizeof(edge);
      }
    }
  }

  // Return the position after a text, and after a group of texts.
  size_t skip_text(size_t at) const {
    if (at >= texts.size()) throw damaged();
    const size_t end = at + 1 + static_cast<uint8_t>(texts[at]);
    if (end > texts.size()) throw damaged();
    return end;
  }
  size_t skip_texts(size_t at) const {
    if (at >= texts.size()) throw damaged();
    auto left = static_cast<uint8_t>(texts[at]);
    for (++at; left > 0; --left) at = skip_text(at);
    return at;
  }

  // Rows of a Criteo log have a separate parser, which expects the label as the first field.
  void find_criteo() {
    static constexpr char kLabelTexts[] = {1, 1, '1', 1, 1, '0'};  // and no other
    const bool has = fields[0].role == kLabelRole;
    if (num_fields + !has != kFields || quote != 0 || is_json != 0 ||
        split.kind != SplitRule::kNone || group_field != kNoField || other_is_negative ||
        (has && texts.compare(fields[0].texts_at, sizeof(kLabelTexts), kLabelTexts,
                              sizeof(kLabelTexts)) != 0)) {
      return;
    }
    for (int c = 0; c < kFields - 1; ++c) {
      const Field& field = fields[static_cast<size_t>(c + has)];
      const bool is_number = c < kNumericals;
      if (field.role != (is_number ? kNumericalRole : kCategoricalRole) ||
          field.column != c - (is_number ? 0 : kNumericals) || *texts_of(field) != 0 ||
          field.buckets != 0 || field.bins_at != 0 ||
          (is_number ? field.type == kDecimal : field.type != kHexadecimal)) {
        return;
      }
    }
    is_criteo = true;
    has_label = has;
    if (has) return;
    Field label = fields[0];
    label.role = kLabelRole;
    fields.insert(fields.begin(), label);
    num_fields = kFields;
  }
};

}  // namespace clicks
