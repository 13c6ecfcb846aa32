// SPDX-License-Identifier: Apache-2.0
// The rows of ratings as columns, which Python takes from time to time.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "row_stream.h"

namespace clicks {

// Distinct texts, and the number of each row's text.
class NumberedTexts {
 public:
  void add(const uint8_t* text, uint32_t length) {
    const uint64_t hash = TextHash::of(text, length);
    if (2 * (ends_.size() + 1) > slots_.size()) grow();
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at] != kFree && !is(static_cast<size_t>(slots_[at]), hash, text, length)) {
      at = (at + 1) & (slots_.size() - 1);
    }
    if (slots_[at] == kFree) {
      slots_[at] = static_cast<int32_t>(ends_.size());
      bytes_.insert(bytes_.end(), text, text + length);
      ends_.push_back(static_cast<int32_t>(bytes_.size()));
      hashes_.push_back(hash);
    }
    numbers_.push_back(slots_[at]);
  }
  void clear() { *this = {}; }

  const std::vector<int32_t>& numbers() const { return numbers_; }
  const std::vector<int32_t>& ends() const { return ends_; }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  static constexpr int32_t kFree = -1;

  bool is(size_t number, uint64_t hash, const uint8_t* text, uint32_t length) const {
    if (hashes_[number] != hash) return false;
    const int32_t begin = number == 0 ? 0 : ends_[number - 1];
    return static_cast<uint32_t>(ends_[number] - begin) == length &&
           std::memcmp(bytes_.data() + begin, text, length) == 0;
  }
  void grow() {
    slots_.assign(std::max<size_t>(2 * slots_.size(), 4096), kFree);
    for (size_t number = 0; number < hashes_.size(); ++number) {
      size_t at = hashes_[number] & (slots_.size() - 1);
      while (slots_[at] != kFree) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = static_cast<int32_t>(number);
    }
  }

  std::vector<int32_t> slots_;  // a power of two of them
  std::vector<uint64_t> hashes_;
  std::vector<int32_t> ends_;
  std::vector<uint8_t> bytes_;
  std::vector<int32_t> numbers_;
};

// Header of each rejected row; its bytes follow.
struct RejectedHeader {
  uint64_t offset;
  uint64_t line;
  uint32_t length;
  uint32_t reason;
};

struct RatingCounts {
  uint64_t rows;
  uint64_t texts[2];
  uint64_t text_bytes[2];
  uint64_t rejected_bytes;
  uint64_t lines;
};

// Memory for the rows that were counted.
struct RatingColumns {
  int32_t* numbers[2];  // of users and items
  int32_t* ends[2];
  uint8_t* bytes[2];
  double* ratings;
  int64_t* times;
  uint8_t* rejected;
};

class RatingRows final : public RowSink {
 public:
  bool rows(RowBatch& batch) override {
    for (int r = 0; r < batch.rows; ++r) {
      const Rating& row = batch.ratings[static_cast<size_t>(r)];
      for (int i = 0; i < 2; ++i) ids_[i].add(row.id[i], row.length[i]);
      ratings_.push_back(row.rating);
      times_.push_back(row.time);
    }
    return true;
  }
  void rejected(const RejectedRow& row, const uint8_t* text) override {
    const RejectedHeader header{row.offset, row.line, row.length, row.reason};
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&header);
    rejected_.insert(rejected_.end(), bytes, bytes + sizeof(header));
    rejected_.insert(rejected_.end(), text, text + row.length);
  }

  RatingCounts counts() const {
    return {ratings_.size(),
            {ids_[0].ends().size(), ids_[1].ends().size()},
            {ids_[0].bytes().size(), ids_[1].bytes().size()},
            rejected_.size(),
            0};
  }
  // Moves all rows so far to `columns`.
  void take(const RatingColumns& columns) {
    for (int i = 0; i < 2; ++i) {
      copy(ids_[i].numbers(), columns.numbers[i]);
      copy(ids_[i].ends(), columns.ends[i]);
      copy(ids_[i].bytes(), columns.bytes[i]);
      ids_[i].clear();
    }
    copy(ratings_, columns.ratings);
    copy(times_, columns.times);
    copy(rejected_, columns.rejected);
    ratings_.clear();
    times_.clear();
    rejected_.clear();
  }

 private:
  template <typename T>
  static void copy(const std::vector<T>& from, T* to) {
    std::copy(from.begin(), from.end(), to);
  }

  NumberedTexts ids_[2];
  std::vector<double> ratings_;
  std::vector<int64_t> times_;
  std::vector<uint8_t> rejected_;
};

}  // namespace clicks
