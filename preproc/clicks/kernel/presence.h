// SPDX-License-Identifier: Apache-2.0
// Bits that mark which columns are not empty in each row of a batch.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "digits.h"
#include "row_format.h"

namespace clicks {

constexpr int kBatchRows = 256;  // fields, values and hash slots of a batch stay in the L2 cache

// Bits that mark which columns of each row are not empty.
struct Presence {
  static constexpr size_t kWords = kMaxColumns / 64;
  uint64_t words[kWords][kBatchRows] = {};

  CLICKS_INLINE bool operator()(int r, size_t c) const { return (words[c / 64][r] >> c % 64) & 1; }
  CLICKS_INLINE void add(int r, size_t c, bool is_present) {
    words[c / 64][r] |= uint64_t{is_present} << c % 64;
  }
  // Marks the first `columns` of the first `rows` as empty.
  void clear(int rows, size_t columns) {
    for (size_t c = 0; c < columns; c += 64) std::fill_n(words[c / 64], rows, 0);
  }
  void clear_row(int r) {
    for (auto& word : words) word[r] = 0;
  }
  void take(const Presence& source, size_t columns, const int* numbers, int count) {
    for (size_t c = 0; c < columns; c += 64) {
      for (int r = 0; r < count; ++r) words[c / 64][r] = source.words[c / 64][numbers[r]];
    }
  }
};

}  // namespace clicks
