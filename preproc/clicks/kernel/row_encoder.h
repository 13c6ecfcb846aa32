// SPDX-License-Identifier: Apache-2.0
// Encodes parsed rows to the columns of a split-binary dataset.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "dictionary.h"
#include "id_columns.h"
#include "memory.h"
#include "numerical_transform.h"
#include "row_stream.h"

namespace clicks {

// Rows [first_row, first_row + rows) of the text, written to these files from row out_row on.
struct EncodeTarget {
  uint64_t first_row;
  uint64_t rows;
  uint64_t out_row;
  uint64_t positives;  // result: clicks of the rows
  int32_t label_fd;
  int32_t float16_fd;  // -1: not written
  int32_t float32_fd;  // -1: not written
  int32_t group_fd;    // -1: not written
  int32_t categorical_fds[kMaxColumns];
  uint8_t id_bytes[kMaxColumns];  // 1, 2 or 4
  // For each list column: files of int32 ids, of uint32 lengths of the rows' lists, and of float32
  // weights or -1. They are appended to.
  int32_t list_fds[kMaxColumns][3];
  uint32_t split;  // the split of all its rows, if the format splits rows
};

// Writes rows to the columns of a dataset.
class EncodingSink : public RowSink {
 public:
  void rejected(const RejectedRow&, const uint8_t*) override {}
  // Writes buffered rows; nothing may follow.
  virtual void finish() = 0;
  // Number of rows of the text so far.
  virtual uint64_t seen() const = 0;
};

class RowEncoder final : public EncodingSink {
 public:
  RowEncoder(const RowFormat& format, const ColumnDictionary* const* dictionaries,
             EncodeTarget* targets, size_t num_targets)
      : columns_(format),
        numericals_(format.num_numerical),
        dictionaries_(dictionaries, dictionaries + columns_.count() + columns_.num_lists()),
        transform_(format),
        decimals_(format.decimal_rules()),
        targets_(targets),
        num_targets_(num_targets),
        label_(kBufferRows),
        has_groups_(format.group_field != kNoField),
        group_(kBufferRows),
        float16_(kBufferRows * numericals_ + 1),
        float32_(kBufferRows * numericals_ + 1),
        ids_(static_cast<size_t>(kBufferRows * columns_.count())),
        lists_(static_cast<size_t>(columns_.num_lists())) {
    for (size_t i = 0; i < num_targets; ++i) targets[i].positives = 0;
    std::fill_n(group_.data(), kBufferRows, -1);
  }

  bool rows(RowBatch& batch) override {
    int from = 0;
    while (from < batch.rows) {
      const uint64_t row = seen_ + static_cast<uint64_t>(from);
      while (target_ < num_targets_ && row >= end_of(target_)) {
        flush();
        ++target_;
      }
      if (target_ == num_targets_) break;
      const EncodeTarget& target = targets_[target_];
      if (row < target.first_row) {  // between two targets
        from += static_cast<int>(std::min<uint64_t>(target.first_row - row, batch.rows - from));
        continue;
      }
      const int count =
          static_cast<int>(std::min<uint64_t>(batch.rows - from, end_of(target_) - row));
      if (buffered_ + count > kBufferRows) flush();
      encode(batch, from, count);
      from += count;
    }
    seen_ += static_cast<uint64_t>(batch.rows);
    return true;
  }

  void finish() override {
    flush();
    start_writeback_of_targets();
  }

  uint64_t seen() const override { return seen_; }

 private:
  static constexpr int kBufferRows = 16 * kBatchRows;
  static constexpr size_t kBufferElements = size_t{1} << 12;

  // Lists that are yet to be written.
  struct ListBuffer {
    std::vector<int32_t> ids;
    std::vector<uint32_t> lengths;
    std::vector<float> weights;

    void write(const int32_t* fds) {
      write_all(fds[0], ids.data(), ids.size() * sizeof(ids[0]));
      write_all(fds[1], lengths.data(), lengths.size() * sizeof(lengths[0]));
      if (fds[2] >= 0) write_all(fds[2], weights.data(), weights.size() * sizeof(weights[0]));
      ids.clear();
      lengths.clear();
      weights.clear();
    }
  };

  void flush() {
    if (buffered_ == 0) return;
    const EncodeTarget& target = targets_[target_];
    for (size_t l = 0; l < lists_.size(); ++l) lists_[l].write(target.list_fds[l]);
    const size_t n = static_cast<size_t>(buffered_);
    const uint64_t row = target.out_row + flushed_;
    pwrite_all(target.label_fd, label_.data(), n, row);
    if (target.float16_fd >= 0) {
      pwrite_all(target.float16_fd, float16_.data(), 2 * numericals_ * n, 2 * numericals_ * row);
    }
    if (target.float32_fd >= 0) {
      pwrite_all(target.float32_fd, float32_.data(), 4 * numericals_ * n, 4 * numericals_ * row);
    }
    if (target.group_fd >= 0) pwrite_all(target.group_fd, group_.data(), 8 * n, 8 * row);
    for (int c = 0; c < columns_.count(); ++c) {
      const uint64_t width = target.id_bytes[c];
      pwrite_all(target.categorical_fds[c], column(c), width * n, width * row);
    }
    flushed_ += n;
    buffered_ = 0;
    if (flushed_ == target.rows) flushed_ = 0;
  }

  void start_writeback_of_targets() const {
    for (size_t t = 0; t < num_targets_; ++t) {
      const EncodeTarget& target = targets_[t];
      const auto start = [&](int fd, uint64_t width) {
        if (fd >= 0) start_writeback(fd, width * target.out_row, width * target.rows);
      };
      start(target.label_fd, 1);
      start(target.float16_fd, 2 * numericals_);
      start(target.float32_fd, 4 * numericals_);
      start(target.group_fd, 8);
      for (int c = 0; c < columns_.count(); ++c)
        start(target.categorical_fds[c], target.id_bytes[c]);
    }
  }

  uint64_t end_of(size_t target) const {
    return targets_[target].first_row + targets_[target].rows;
  }
  uint8_t* column(int c) {
    return reinterpret_cast<uint8_t*>(ids_.data() + static_cast<size_t>(c) * kBufferRows);
  }

  void encode(const RowBatch& batch, int from, int count) {
    EncodeTarget& target = targets_[target_];
    const size_t at = static_cast<size_t>(buffered_);
    std::memcpy(&label_[at], batch.label + from, static_cast<size_t>(count));
    for (int r = from; r < from + count; ++r) target.positives += batch.label[r];
    if (has_groups_) {
      std::memcpy(&group_[at], batch.group + from, 8 * static_cast<size_t>(count));
    }
    const bool want_float32 = target.float32_fd >= 0;
    for (int r = 0; r < count; ++r) {
      const size_t out = (at + static_cast<size_t>(r)) * numericals_;
      const Presence& present = batch.numerical_present;
      const size_t row = static_cast<size_t>(from + r);
      for (size_t first = 0; first < numericals_; first += 64) {
        uint64_t bits = present.words[first / 64][from + r];
        const size_t end = std::min(numericals_, first + 64);
        for (size_t c = first; c < end; ++c, bits >>= 1) {
          const auto value = transform_(batch.numerical[batch.number_at(row, c)], bits & 1);
          float16_[out + c] = value.float16;
          if (want_float32) float32_[out + c] = value.float32;
        }
      }
      for (const auto& [c, rule] : decimals_) {
        const double number = batch.decimal[batch.number_at(row, c)];
        float32_[out + c] = rule(present(from + r, c) ? number : rule.mean);
      }
    }
    for (int c = 0; c < columns_.count(); ++c) {
      switch (target.id_bytes[c]) {
        case 1:
          look_up(batch, from, count, c, reinterpret_cast<int8_t*>(column(c)) + at);
          break;
        case 2:
          look_up(batch, from, count, c, reinterpret_cast<int16_t*>(column(c)) + at);
          break;
        default:
          look_up(batch, from, count, c, reinterpret_cast<int32_t*>(column(c)) + at);
      }
    }
    for (int l = 0; l < columns_.num_lists(); ++l) encode_lists(batch, from, count, l);
    buffered_ += count;
  }

  void encode_lists(const RowBatch& batch, int from, int count, int l) {
    const int c = columns_.count() + l;
    const ColumnDictionary& of_column = *dictionaries_[static_cast<size_t>(c)];
    const ListColumn& lists = batch.lists[l];
    const ListElements& elements = *lists.elements;
    ListBuffer& out = lists_[static_cast<size_t>(l)];
    for (int r = from; r < from + count; ++r) {
      out.lengths.push_back(lists.end[r] - lists.begin[r]);
      for (uint32_t i = lists.begin[r]; i < lists.end[r]; ++i) {
        uint32_t id;
        if (columns_.has_wide_keys(c)) {
          id = of_column.wide->find(elements.wide[i]);
        } else {
          const uint32_t key = key_of_category(elements.narrow[i]);
          id = of_column.narrow->find(elements.narrow[i], of_column.narrow->bucket_of_key(key));
        }
        out.ids.push_back(static_cast<int32_t>(id));
        if (!elements.weights.empty()) out.weights.push_back(elements.weights[i]);
      }
    }
    if (out.ids.size() >= kBufferElements) out.write(targets_[target_].list_fds[l]);
  }

  template <typename Id>
  void look_up(const RowBatch& batch, int from, int count, int c, Id* out) {
    const ColumnDictionary& of_column = *dictionaries_[static_cast<size_t>(c)];
    if (columns_.has_wide_keys(c)) {
      look_up_wide(batch, from, count, c, *of_column.wide, out);
      return;
    }
    const Dictionary& dictionary = *of_column.narrow;
    columns_.copy(batch, from, count, c, categories_);
    kernels_.hash_categories(categories_, count, keys_);
    if (dictionary.is_large()) {
      for (int r = 0; r < count; ++r) dictionary.prefetch(dictionary.bucket_of_key(keys_[r]));
    }
    for (int r = 0; r < count; ++r) {
      const uint32_t present = batch.id_present(from + r, static_cast<size_t>(c));
      const uint32_t id = dictionary.find(categories_[r], dictionary.bucket_of_key(keys_[r]));
      out[r] = static_cast<Id>(id & (0 - present));
    }
  }

  template <typename Id>
  void look_up_wide(const RowBatch& batch, int from, int count, int c,
                    const WideDictionary& dictionary, Id* out) {
    const auto is_present = [&](int r) {
      return batch.id_present(from + r, static_cast<size_t>(c));
    };
    for (int r = 0; r < count; ++r) {
      if (is_present(r)) dictionary.prefetch(columns_.wide_key(batch, from + r, c));
    }
    for (int r = 0; r < count; ++r) {
      const WideKey* key = is_present(r) ? &columns_.wide_key(batch, from + r, c) : nullptr;
      out[r] = static_cast<Id>(key == nullptr ? 0 : dictionary.find(*key));
    }
  }

  const Kernels& kernels_ = kernels();
  IdColumns columns_;
  size_t numericals_;
  std::vector<const ColumnDictionary*> dictionaries_;
  NumericalTransform transform_;
  std::vector<std::pair<size_t, NumberRule>> decimals_;  // of the columns of decimal numbers
  EncodeTarget* targets_;
  size_t num_targets_;
  size_t target_ = 0;
  uint64_t seen_ = 0;     // rows of the text so far
  uint64_t flushed_ = 0;  // rows of the target that were written
  int buffered_ = 0;
  Pages<uint8_t> label_;
  bool has_groups_;
  Pages<int64_t> group_;  // -1 for rows without a group
  Pages<uint16_t> float16_;
  Pages<float> float32_;
  Pages<int32_t> ids_;
  std::vector<ListBuffer> lists_;
  uint32_t categories_[kBatchRows];  // categories of one column; their keys follow
  uint32_t keys_[kBatchRows];
};

// Writes each row to the target of its split.
class SplitEncoder final : public EncodingSink {
 public:
  SplitEncoder(const RowFormat& format, const ColumnDictionary* const* dictionaries,
               EncodeTarget* targets, size_t num_targets)
      : rule_(format.split), part_(format) {
    for (size_t t = 0; t < num_targets; ++t) {
      encoders_[targets[t].split] =
          std::make_unique<RowEncoder>(format, dictionaries, targets + t, 1);
    }
  }

  bool rows(RowBatch& batch) override {
    for (int split = 0; split < kNumSplits; ++split) {
      if (encoders_[split] == nullptr) continue;
      int count = 0;
      for (int r = 0; r < batch.rows; ++r) {
        numbers_[count] = r;
        count += rule_.split_of(batch.split_value[r]) == split;
      }
      part_.take(batch, numbers_, count);
      encoders_[split]->rows(part_);
    }
    seen_ += static_cast<uint64_t>(batch.rows);
    return true;
  }

  void finish() override {
    for (const auto& encoder : encoders_) {
      if (encoder != nullptr) encoder->finish();
    }
  }

  uint64_t seen() const override { return seen_; }

 private:
  SplitRule rule_;
  RowBatch part_;
  int numbers_[kBatchRows];  // of the rows of a split
  std::unique_ptr<RowEncoder> encoders_[kNumSplits];
  uint64_t seen_ = 0;
};

}  // namespace clicks
