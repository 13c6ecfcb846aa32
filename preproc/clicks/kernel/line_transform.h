// SPDX-License-Identifier: Apache-2.0
// Transforms raw lines in memory to the features of a dataset.

#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "feature_file.h"
#include "row_stream.h"

namespace clicks {

// The first line of a text that is no valid row.
struct RejectedLine {
  uint64_t line;  // from 0
  uint32_t reason;
  uint32_t field;  // as in RejectedRow
};

class LineTransform final : private RowSink {
 public:
  explicit LineTransform(const std::string& path)
      : file_(path),
        columns_(file_.header().row_rule, kUnlabelledCriteo),
        transform_(file_.header().numerical_rule),
        stream_(*this, nullptr, 0, kUnlabelledCriteo) {}

  const FeatureFile& file() const { return file_; }
  int num_columns() const { return columns_.count(); }

  // Transforms lines without a label, separated by line feeds.
  //
  // numerical: [lines, 13]; ids: [lines, num_columns()]. Nothing of them may be used if a line is
  // rejected. Returns whether none was; else `rejected` is the first.
  bool run(const uint8_t* text, size_t size, uint64_t lines, float* numerical, int64_t* ids,
           RejectedLine* rejected) {
    numerical_ = numerical;
    ids_ = ids;
    limit_ = lines;
    rows_ = 0;
    is_rejected_ = false;
    stream_.restart();
    stream_.feed(text, size);
    stream_.finish();
    if (is_rejected_) {
      *rejected = rejected_line_;
    } else if (rows_ != lines) {
      throw std::runtime_error("the text has " + std::to_string(rows_) + " lines, not " +
                               std::to_string(lines));
    }
    return !is_rejected_;
  }

 private:
  bool rows(const RowBatch& batch) override {
    if (is_rejected_) return false;
    if (rows_ + static_cast<uint64_t>(batch.rows) > limit_) {
      throw std::runtime_error("a line holds a line feed");
    }
    for (int r = 0; r < batch.rows; ++r) {
      float* out = numerical_ + (rows_ + static_cast<uint64_t>(r)) * kNumericals;
      for (int c = 0; c < kNumericals; ++c) {
        const bool present = (batch.numerical_present[r] >> c) & 1;
        const auto value = transform_(batch.numerical[r * kNumericals + c], present);
        out[c] = file_.header().rounds_to_float16 ? float_of_bits(value.float16) : value.float32;
      }
    }
    for (int c = 0; c < columns_.count(); ++c) look_up(batch, c);
    rows_ += static_cast<uint64_t>(batch.rows);
    return true;
  }

  void rejected(const RejectedRow& row, const uint8_t*) override {
    if (is_rejected_) return;
    is_rejected_ = true;
    rejected_line_ = {row.line, row.reason, row.field};
  }

  void look_up(const RowBatch& batch, int c) {
    const StoredDictionary& dictionary = file_.dictionaries()[static_cast<size_t>(c)];
    columns_.copy(batch, 0, batch.rows, c, keys_);
    kernels_.hash_categories(keys_, batch.rows, keys_);
    for (int r = 0; r < batch.rows; ++r) dictionary.prefetch_bucket(keys_[r]);
    for (int r = 0; r < batch.rows; ++r) dictionary.prefetch_entries(keys_[r]);
    int64_t* out = ids_ + rows_ * static_cast<uint64_t>(columns_.count()) + c;
    for (int r = 0; r < batch.rows; ++r) {
      const bool present = (batch.id_present[r] >> c) & 1;
      out[r * columns_.count()] = present ? dictionary.find(keys_[r]) : 0;
    }
  }

  // 0, or a normal number far from the limits: see float16_bits.
  static float float_of_bits(uint16_t half) {
    if (half == 0) return 0;
    const uint32_t bits = (uint32_t{half} + ((127 - 15) << 10)) << 13;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  const Kernels& kernels_ = kernels();
  FeatureFile file_;
  IdColumns columns_;
  NumericalTransform transform_;
  RowStream stream_;
  float* numerical_ = nullptr;
  int64_t* ids_ = nullptr;
  uint64_t limit_ = 0;
  uint64_t rows_ = 0;
  bool is_rejected_ = false;
  RejectedLine rejected_line_{};
  uint32_t keys_[kBatchRows];
};

}  // namespace clicks
