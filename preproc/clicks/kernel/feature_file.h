// SPDX-License-Identifier: Apache-2.0
// The rules and dictionaries of a dataset in one file, mapped and shared by all its readers.
//
// preproc/clicks/serving/feature_file.py writes it and describes its bytes.

#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "id_columns.h"
#include "kernel_choice.h"
#include "memory.h"
#include "numerical_transform.h"
#include "row_parser.h"

namespace clicks {

struct FeatureColumn {
  uint64_t categories;
  uint64_t buckets_at;  // uint32 [2**bucket_bits + 1]: first entry of each bucket, then the end
  uint64_t entries_at;  // [categories] of remainder, then id, in order of the keys
  uint64_t keys_at;     // wide keys in id order, without gaps; 0: numbers of 32 bits
  uint64_t keys_bytes;
  uint64_t ends_at;  // uint64 [categories]: the end of each key; 0: integers of eight bytes
  uint32_t bucket_bits;
  uint16_t remainder_bytes;
  uint16_t id_bytes;
};

struct FeatureHeader {
  char magic[8];
  uint64_t bytes;  // of the file
  RowRule row_rule;
  NumericalRule numerical_rule;
  uint64_t rounds_to_float16;  // not 0: the numbers of the dataset are float16
  uint64_t num_columns;
  uint32_t is_criteo;  // the fields of a Criteo log without its label
  uint16_t delimiter;
  uint16_t quote;       // 0: none
  uint32_t num_fields;  // of a line, without the label
  uint32_t text_bytes;  // of all fields
};

// A field of a line. Its texts begin with its name, after the length of that; then come those that
// mean that it is missing: their number, then each after its length.
struct FeatureField {
  uint64_t buckets;
  NumberRule rule;
  TimeRule time;
  ListRule list;
  uint32_t text_at;
  uint8_t role;
  uint8_t column;
  uint8_t type;
  uint8_t unused;
};

constexpr char kFeatureMagic[8] = {'C', 'L', 'I', 'C', 'K', 'S', 'F', '5'};
constexpr uint64_t kFeaturePadding = 8;  // bytes after the last entry, which is read by load64

// Maps a category to its id. The highest bits of a category's hash are its bucket, the next ones
// its remainder. That tells the categories of 32 bits in a bucket apart; wide keys are compared.
class StoredDictionary {
 public:
  StoredDictionary(const uint8_t* file, const FeatureColumn& column)
      : buckets_(file + column.buckets_at),
        entries_(file + column.entries_at),
        keys_(file + column.keys_at, column.keys_bytes,
              column.ends_at == 0 ? nullptr : file + column.ends_at),
        categories_(static_cast<uint32_t>(column.categories)),
        bucket_bits_(column.bucket_bits),
        width_(static_cast<uint32_t>(column.remainder_bytes + column.id_bytes)),
        id_shift_(8 * column.remainder_bytes),
        id_mask_((uint64_t{1} << (8 * column.id_bytes)) - 1) {}

  // hash: of a category of 32 bits its key in the highest ones.
  void prefetch_bucket(uint64_t hash) const { __builtin_prefetch(bucket(hash)); }
  void prefetch_entries(uint64_t hash) const { __builtin_prefetch(entry(load32(bucket(hash)))); }

  // key: null if the category has 32 bits.
  CLICKS_INLINE uint32_t find(uint64_t hash, const WideKey* key) const {
    const uint8_t* ends = bucket(hash);
    // Ends are limited to the entries, so that a damaged file gives wrong ids but no wild reads.
    const uint32_t end = std::min(load32(ends + 4), categories_);
    const uint64_t remainder = (hash << bucket_bits_) >> (64 - id_shift_);
    for (uint32_t i = load32(ends); i < end; ++i) {
      const uint64_t stored = load64(entry(i));
      if ((stored & (~uint64_t{0} >> (64 - id_shift_))) != remainder) continue;
      const auto id = static_cast<uint32_t>((stored >> id_shift_) & id_mask_);
      if (key == nullptr || (id - 1 < categories_ && keys_.is(id - 1, *key))) return id;
    }
    return 0;
  }

 private:
  CLICKS_INLINE static uint32_t load32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  CLICKS_INLINE const uint8_t* bucket(uint64_t hash) const {
    return buckets_ + 4 * ((hash >> 1) >> (63 - bucket_bits_));  // no shift by 64
  }
  CLICKS_INLINE const uint8_t* entry(uint32_t i) const {
    return entries_ + uint64_t{width_} * std::min(i, categories_);
  }

  const uint8_t* buckets_;
  const uint8_t* entries_;
  WideKeys keys_;
  uint32_t categories_;
  uint32_t bucket_bits_;
  uint32_t width_;
  uint32_t id_shift_;
  uint64_t id_mask_;
};

// The fields of a row with all that a RowFormat points to.
class RowFields {
 public:
  RowFields() = default;
  RowFields(const RowFields&) = delete;
  RowFields& operator=(const RowFields&) = delete;

  // texts: see RowFormat.
  void add(const FeatureField& field, const std::string& name, const std::string& texts) {
    names_.push_back(name);
    roles_.push_back(field.role);
    columns_.push_back(field.column);
    types_.push_back(field.type);
    buckets_.push_back(field.buckets);
    rules_.push_back(field.rule);
    times_.push_back(field.time);
    lists_.push_back(field.list);
    texts_at_.push_back(static_cast<uint32_t>(texts_.size()));
    texts_ += texts;
  }

  const std::vector<std::string>& names() const { return names_; }

  // Its arrays are those of this object.
  RowFormat format(uint32_t delimiter, uint32_t quote) const {
    RowFormat format{};
    format.delimiter = delimiter;
    format.quote = quote;
    format.num_fields = static_cast<uint32_t>(names_.size());
    format.num_numerical = count(kNumericalRole);
    format.num_categorical = count(kCategoricalRole);
    for (size_t f = 0; f < roles_.size(); ++f) {
      if (roles_[f] == kTimestampRole) format.num_categorical += time_features(times_[f]);
    }
    format.roles = roles_.data();
    format.columns = columns_.data();
    format.texts = reinterpret_cast<const uint8_t*>(texts_.data());
    format.texts_at = texts_at_.data();
    format.types = types_.data();
    format.buckets = buckets_.data();
    format.rules = rules_.data();
    format.times = times_.data();
    format.lists = lists_.data();
    format.num_lists = count(kListRole);
    format.group_field = kNoField;
    return format;
  }

 private:
  uint32_t count(uint8_t role) const {
    return static_cast<uint32_t>(std::count(roles_.begin(), roles_.end(), role));
  }

  std::vector<std::string> names_;
  std::vector<uint8_t> roles_;
  std::vector<uint8_t> columns_;
  std::vector<uint8_t> types_;
  std::vector<uint64_t> buckets_;
  std::vector<NumberRule> rules_;
  std::vector<TimeRule> times_;
  std::vector<ListRule> lists_;
  std::vector<uint32_t> texts_at_;
  std::string texts_;
};

class FeatureFile {
 public:
  explicit FeatureFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size < 0) {
      const std::runtime_error error = system_error("cannot be read");
      if (fd >= 0) close(fd);
      throw error;
    }
    size_ = static_cast<uint64_t>(size);
    void* data = size_ < sizeof(FeatureHeader) ? MAP_FAILED
                                               : mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (data == MAP_FAILED) throw damaged();
    data_ = static_cast<const uint8_t*>(data);
    try {
      read();
    } catch (...) {
      munmap(data, size_);
      throw;
    }
  }
  FeatureFile(const FeatureFile&) = delete;
  FeatureFile& operator=(const FeatureFile&) = delete;
  ~FeatureFile() { munmap(const_cast<uint8_t*>(data_), size_); }

  const FeatureHeader& header() const { return header_; }
  // Fields of a line, and the features among them.
  const RowFields& line() const { return line_; }
  const RowFields& used() const { return used_; }
  // Format of rows with these fields, which must be those of this file.
  RowFormat format(const RowFields& fields) const {
    if (header_.is_criteo) return kUnlabelledCriteo;
    return &fields == &used_ ? fields.format('\t', 0)
                             : fields.format(header_.delimiter, header_.quote);
  }
  const std::vector<StoredDictionary>& dictionaries() const { return dictionaries_; }
  // Categories of each column.
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  // Ids of each column in a row: one, or the most of a list, and whether a list is averaged.
  const std::vector<uint32_t>& widths() const { return widths_; }
  const std::vector<uint8_t>& take_mean() const { return take_mean_; }

 private:
  std::runtime_error damaged() const {
    return std::runtime_error("is damaged or of another release");
  }

  void read() {
    std::memcpy(&header_, data_, sizeof(header_));
    const bool known = std::memcmp(header_.magic, kFeatureMagic, sizeof(kFeatureMagic)) == 0;
    if (!known || header_.bytes != size_) throw damaged();
    if (header_.num_fields < 1 || header_.num_fields > kMaxFields) throw damaged();
    const NumericalRule& rule = header_.numerical_rule;
    const auto is_int32 = [](int64_t x) { return x >= INT32_MIN && x <= INT32_MAX; };
    // Their sum is what a logarithm is taken of.
    if (!is_int32(rule.minimum) || !is_int32(rule.offset) || rule.minimum + rule.offset < 1) {
      throw damaged();
    }
    read_fields();
    const RowFormat row_format = format(line_);
    if (row_format.num_categorical > kMaxColumns || row_format.num_numerical > kMaxColumns) {
      throw damaged();
    }
    const IdColumns id_columns(header_.row_rule, row_format);
    const auto singles = static_cast<uint64_t>(id_columns.count());
    const uint64_t columns = singles + row_format.num_lists;
    if (header_.num_columns != columns || columns > kMaxColumns) throw damaged();
    std::vector<KeyType> key_types(columns, KeyType::kNarrow);
    for (uint32_t f = 0; f < row_format.num_fields; ++f) {
      if (!has_wide_keys(row_format, f)) continue;
      const bool is_text = row_format.types[f] == kText;
      const uint64_t first = row_format.roles[f] == kListRole ? singles : 0;
      key_types[first + row_format.columns[f]] = is_text ? KeyType::kText : KeyType::kInteger;
    }
    widths_.assign(columns, 1);
    take_mean_.assign(columns, 0);
    for (uint32_t f = 0; f < row_format.num_fields; ++f) {
      if (row_format.roles[f] != kListRole) continue;
      widths_[singles + row_format.columns[f]] = row_format.lists[f].max_length;
      take_mean_[singles + row_format.columns[f]] = row_format.lists[f].takes_mean != 0;
    }
    const uint64_t begin =
        sizeof(header_) + header_.num_fields * sizeof(FeatureField) + header_.text_bytes;
    if (!fits(begin, columns * sizeof(FeatureColumn))) throw damaged();
    for (uint64_t c = 0; c < columns; ++c) {
      FeatureColumn column;
      std::memcpy(&column, data_ + begin + c * sizeof(column), sizeof(column));
      const uint64_t width = uint64_t{column.remainder_bytes} + column.id_bytes;
      // Remainders tell categories of 32 bits apart.
      const uint32_t least_bits = key_types[c] == KeyType::kNarrow ? 32 : 1;
      if (column.bucket_bits > 31 || column.categories > UINT32_MAX || width > 8 ||
          8u * column.remainder_bytes + column.bucket_bits < least_bits ||
          column.remainder_bytes < 1 || column.id_bytes < 1 || column.id_bytes > 4 ||
          (column.keys_at != 0) != (key_types[c] != KeyType::kNarrow) ||
          (column.ends_at != 0) != (key_types[c] == KeyType::kText) ||
          !fits(column.keys_at, column.keys_bytes) ||
          !fits(column.ends_at, column.ends_at == 0 ? 0 : 8 * column.categories) ||
          !fits(column.buckets_at, 4 * ((uint64_t{1} << column.bucket_bits) + 1)) ||
          !fits(column.entries_at, width * column.categories + kFeaturePadding)) {
        throw damaged();
      }
      dictionaries_.emplace_back(data_, column);
      sizes_.push_back(column.categories);
    }
  }

  void read_fields() {
    const uint64_t fields_bytes = header_.num_fields * sizeof(FeatureField);
    if (!fits(sizeof(header_), fields_bytes + header_.text_bytes)) throw damaged();
    const uint8_t* const fields = data_ + sizeof(header_);
    const uint8_t* const texts = fields + fields_bytes;
    const uint8_t* const end = texts + header_.text_bytes;
    uint64_t used[3] = {};  // columns of categorical and of numerical features, and of lists
    for (uint32_t f = 0; f < header_.num_fields; ++f) {
      FeatureField field;
      std::memcpy(&field, fields + f * sizeof(field), sizeof(field));
      if (field.text_at > header_.text_bytes) throw damaged();
      const uint8_t* at = texts + field.text_at;
      const std::string name = text_at(at, end);
      const uint8_t* const missing = at;
      if (at == end) throw damaged();
      for (uint32_t left = *at++; left > 0; --left) text_at(at, end);
      const std::string missing_texts(missing, at);
      line_.add(field, name, missing_texts);
      if (field.role == kIgnored) continue;
      const bool is_number = field.role == kNumericalRole, is_time = field.role == kTimestampRole;
      const bool is_list = field.role == kListRole;
      const uint32_t columns = is_time ? time_features(field.time) : 1;
      // Numbers of columns have no gap and no twin.
      const uint64_t bits = columns == 0 ? 0 : ~uint64_t{0} >> (64 - columns);
      if (field.role == kLabelRole || field.role > kListRole || field.type > kDecimal ||
          (!is_time && field.type == (is_number ? kText : kDecimal)) ||
          (is_list && (field.list.max_length < 1 || field.list.max_length > kMaxListLength)) ||
          field.column >= kMaxColumns || field.column + columns > kMaxColumns ||
          (used[is_list ? 2 : is_number] & bits << field.column) != 0 ||
          field.time.zone_minutes <= -24 * 60 || field.time.zone_minutes >= 24 * 60) {
        throw damaged();
      }
      used[is_list ? 2 : is_number] |= bits << field.column;
      used_.add(field, name, missing_texts);
    }
    for (const uint64_t columns : used) {
      if ((columns & (columns + 1)) != 0) throw damaged();
    }
    if (header_.is_criteo && used_.names().size() != kFields - 1) throw damaged();
  }

  // Reads a text after its length, and moves `at` behind it.
  std::string text_at(const uint8_t*& at, const uint8_t* end) const {
    if (at == end || end - at - 1 < *at) throw damaged();
    const std::string text(at + 1, at + 1 + *at);
    at += 1 + *at;
    return text;
  }

  bool fits(uint64_t at, uint64_t bytes) const { return at <= size_ && bytes <= size_ - at; }

  const uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
  FeatureHeader header_;
  RowFields line_;
  RowFields used_;
  std::vector<StoredDictionary> dictionaries_;
  std::vector<uint64_t> sizes_;
  std::vector<uint32_t> widths_;
  std::vector<uint8_t> take_mean_;
};

}  // namespace clicks
