// SPDX-License-Identifier: Apache-2.0
// Transforms raw lines in memory to the features of a dataset.

#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "feature_file.h"
#include "numerical_transform.h"
#include "row_stream.h"

namespace clicks {

// The first line of a text that is not a valid row.
struct RejectedLine {
  uint64_t line;  // from 0
  std::string message;
};

// A whole line of the log without its label, or only its features, separated by tabs.
enum class RowForm { kLine, kFields };

class LineTransform final : private RowSink {
 public:
  explicit LineTransform(const std::string& path)
      : file_(path),
        line_format_(file_.format()),
        fields_format_(line_format_.of_features()),
        columns_(line_format_),
        transform_(line_format_),
        decimals_(line_format_.decimal_rules()),
        lists_(line_format_.num_lists),
        line_stream_(*this, nullptr, 0, line_format_),
        fields_stream_(*this, nullptr, 0, fields_format_) {
    for (const Field& field : line_format_.fields) {
      if (field.role == kListRole) lists_[field.column] = field.list;
    }
    for (const uint32_t width : file_.widths()) slots_ += static_cast<int>(width);
  }

  const FeatureFile& file() const { return file_; }
  int num_columns() const { return columns_.count() + columns_.num_lists(); }
  // Number of ids of a row, including those of its lists.
  int num_slots() const { return slots_; }
  int num_list_slots() const { return slots_ - columns_.count(); }
  int num_numerical() const { return static_cast<int>(line_format_.num_numerical); }
  int num_features() const { return static_cast<int>(num_fields(fields_format_)); }

  // Transforms rows of a form, separated by line feeds.
  //
  // numerical: [lines, num_numerical()]; ids: [lines, num_slots()], lists padded with zeros;
  // scale: [lines, num_list_slots()], the factor of each id of a list, 0 after its end. Returns
  // true if all lines are valid. Otherwise `rejected` is the first bad one, and the outputs must
  // not be used.
  bool run(RowForm form, const uint8_t* text, size_t size, uint64_t lines, float* numerical,
           int64_t* ids, float* scale, RejectedLine* rejected) {
    numerical_ = numerical;
    ids_ = ids;
    scale_ = scale;
    limit_ = lines;
    rows_ = 0;
    form_ = form;
    is_rejected_ = false;
    RowStream& stream = form == RowForm::kLine ? line_stream_ : fields_stream_;
    stream.restart();
    stream.feed(text, size);
    stream.finish();
    if (is_rejected_) {
      *rejected = rejected_line_;
    } else if (rows_ != lines) {
      throw std::runtime_error("the text has " + std::to_string(rows_) + " lines, not " +
                               std::to_string(lines));
    }
    return !is_rejected_;
  }

 private:
  bool rows(RowBatch& batch) override {
    if (is_rejected_) return false;
    if (rows_ + static_cast<uint64_t>(batch.rows) > limit_) {
      throw std::runtime_error("a line holds a line feed");
    }
    const size_t width = line_format_.num_numerical;
    for (size_t r = 0; r < static_cast<size_t>(batch.rows); ++r) {
      float* out = numerical_ + (rows_ + r) * width;
      const auto present = [&](size_t c) {
        return batch.numerical_present(static_cast<int>(r), c);
      };
      for (size_t c = 0; c < width; ++c) {
        const auto value = transform_(batch.numerical[batch.number_at(r, c)], present(c));
        out[c] = file_.rounds_to_float16() ? float_of_bits(value.float16) : value.float32;
      }
      for (const auto& [c, rule] : decimals_) {
        out[c] = rule(present(c) ? batch.decimal[batch.number_at(r, c)] : rule.mean);
      }
    }
    for (int c = 0; c < columns_.count(); ++c) look_up(batch, c);
    int slot = columns_.count();
    for (int l = 0; l < columns_.num_lists(); ++l) {
      look_up_lists(batch, l, slot);
      slot += static_cast<int>(file_.widths()[static_cast<size_t>(columns_.count() + l)]);
    }
    rows_ += static_cast<uint64_t>(batch.rows);
    return true;
  }

  void rejected(const RejectedRow& row, const uint8_t* text) override {
    if (is_rejected_) return;
    is_rejected_ = true;
    rejected_line_ = {row.line, explanation(row, text)};
  }

  // Number of fields of a line, which has no label.
  static uint32_t num_fields(const RowFormat& format) {
    return format.num_fields - format.first_field();
  }

  std::string explanation(const RejectedRow& row, const uint8_t* text) const {
    const RowFormat& format = form_ == RowForm::kLine ? line_format_ : fields_format_;
    std::string delimiter(1, static_cast<char>(format.delimiter));
    if (format.delimiter_end != 0) delimiter += static_cast<char>(format.delimiter_end);
    if (row.reason == kQuote) {
      return "column " + format.name(std::min(row.field, format.num_fields - 1)) +
             ": is refused (quote): expected a closing quote before " + shown(delimiter) +
             " or the end";
    }
    if (row.reason == kColumns) {
      return "has " + std::to_string(row.field) + " fields, expected " +
             std::to_string(num_fields(format)) + " with " + shown(delimiter) +
             " between them, without a label";
    }
    const uint8_t* begin = text;
    const uint8_t* const end = text + row.length;
    for (uint32_t f = format.first_field(); f < row.field; ++f) {
      begin = end_of_field(begin, end, format) + format.delimiter_bytes();
    }
    const uint8_t* const end_of_cell = end_of_field(begin, end, format);
    auto length = static_cast<uint32_t>(end_of_cell - begin);
    KeyArena unescaped;
    if (format.is_table && length > 0 && *begin == format.quote) {
      unescape(begin, length, unescaped);
    }
    const std::string field(begin, begin + length);
    return "column " + format.name(row.field) + ": " + shown(field) + " is refused (" +
           kReasons[row.reason] + "): expected " + expected(row.reason, format.fields[row.field]);
  }

  static constexpr const char* kReasons[] = {"columns",  "label",  "integer", "hex",
                                             "encoding", "string", "number",  "quote",
                                             "time",     "list",   "json"};

  static std::string expected(RejectReason reason, const Field& field) {
    const std::string or_nothing = ", or nothing if it is missing";
    const bool is_category = field.has_categories();
    switch (reason) {
      case kInteger:
        return (is_category ? "an integer of 64 bits" : "an integer of 32 bits") + or_nothing;
      case kHex:
        return "up to 8 hexadecimal digits" + or_nothing;
      case kNumber:
        return "a decimal number within float32" + or_nothing;
      case kTime:
        return "a time from 1970 to 2199 of the form " +
               std::string(field.time.format,
                           strnlen(field.time.format, sizeof(TimeRule::format))) +
               or_nothing;
      case kList:
        return std::string("elements with ") +
               shown(std::string(1, static_cast<char>(field.list.separator))) +
               " between, each with its weight if it has one, or nothing if it is missing";
      case kString:
        return "at most " + std::to_string(kMaxTextBytes) + " bytes";
      default:
        return is_category && field.type == kText ? "UTF-8" : "printable ASCII";
    }
  }

  // The first bytes of a field in quotes; bytes other than printable ASCII are escaped as in C.
  static std::string shown(const std::string& field) {
    static constexpr size_t kShownBytes = 40;
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text = "'";
    for (const char each : field.substr(0, kShownBytes)) {
      const auto byte = static_cast<uint8_t>(each);
      if (each == '\t') {
        text += "\\t";
      } else if (is_not_printable(byte)) {
        text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      } else {
        text += each;
      }
    }
    return text + "'";
  }

  void look_up(const RowBatch& batch, int c) {
    const StoredDictionary& dictionary = file_.dictionaries()[static_cast<size_t>(c)];
    const bool is_wide = columns_.has_wide_keys(c);
    if (!is_wide) {
      columns_.copy(batch, 0, batch.rows, c, keys_);
      kernels_.hash_categories(keys_, batch.rows, keys_);
    }
    for (int r = 0; r < batch.rows; ++r) {
      const bool present = batch.id_present(r, static_cast<size_t>(c));
      wide_[r] = is_wide && present ? &columns_.wide_key(batch, r, c) : nullptr;
      hashes_[r] = is_wide ? (present ? wide_[r]->hash : 0) : uint64_t{keys_[r]} << 32;
    }
    for (int r = 0; r < batch.rows; ++r) dictionary.prefetch_bucket(hashes_[r]);
    for (int r = 0; r < batch.rows; ++r) dictionary.prefetch_entries(hashes_[r]);
    int64_t* out = ids_ + rows_ * static_cast<uint64_t>(slots_) + c;
    for (int r = 0; r < batch.rows; ++r) {
      const bool present = batch.id_present(r, static_cast<size_t>(c));
      out[r * slots_] = present ? dictionary.find(hashes_[r], wide_[r]) : 0;
    }
  }

  // Writes the ids of a list column, from a slot of the row on, and their factors.
  void look_up_lists(const RowBatch& batch, int l, int slot) {
    const auto c = static_cast<size_t>(columns_.count() + l);
    const StoredDictionary& dictionary = file_.dictionaries()[c];
    const ListColumn& lists = batch.lists[l];
    const uint32_t width = file_.widths()[c];
    const bool is_wide = columns_.has_wide_keys(static_cast<int>(c));
    for (int r = 0; r < batch.rows; ++r) {
      const uint64_t row = rows_ + static_cast<uint64_t>(r);
      int64_t* const ids = ids_ + row * static_cast<uint64_t>(slots_) + slot;
      float* const scale =
          scale_ + row * static_cast<uint64_t>(num_list_slots()) + slot - columns_.count();
      const uint32_t count = lists.end[r] - lists.begin[r];
      std::fill(ids, ids + width, 0);
      std::fill(scale, scale + width, 0.0F);
      for (uint32_t i = 0; i < count; ++i) {
        const size_t at = lists.begin[r] + i;
        if (is_wide) {
          const WideKey& key = lists.elements->wide[at];
          ids[i] = dictionary.find(key.hash, &key);
        } else {
          const uint32_t key = key_of_category(lists.elements->narrow[at]);
          ids[i] = dictionary.find(uint64_t{key} << 32, nullptr);
        }
        scale[i] = lists.elements->weights.empty() ? 1.0F : lists.elements->weights[at];
        if (lists_[static_cast<size_t>(l)].takes_mean) scale[i] /= static_cast<float>(count);
      }
    }
  }

  // half: 0 or a normal number far from the limits; see float16_bits.
  static float float_of_bits(uint16_t half) {
    if (half == 0) return 0;
    const uint32_t bits = (uint32_t{half} + ((127 - 15) << 10)) << 13;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  const Kernels& kernels_ = kernels();
  FeatureFile file_;
  RowFormat line_format_;
  RowFormat fields_format_;
  IdColumns columns_;
  NumericalTransform transform_;
  std::vector<std::pair<size_t, NumberRule>> decimals_;  // of the columns of decimal numbers
  std::vector<ListRule> lists_;
  RowStream line_stream_;
  RowStream fields_stream_;
  RowForm form_ = RowForm::kLine;
  float* numerical_ = nullptr;
  int64_t* ids_ = nullptr;
  float* scale_ = nullptr;
  int slots_ = 0;
  uint64_t limit_ = 0;
  uint64_t rows_ = 0;
  bool is_rejected_ = false;
  RejectedLine rejected_line_{};
  uint32_t keys_[kBatchRows];  // this and the next two: of one column
  uint64_t hashes_[kBatchRows];
  const WideKey* wide_[kBatchRows];
};

}  // namespace clicks
