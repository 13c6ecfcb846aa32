// SPDX-License-Identifier: Apache-2.0
// Bits that mark which columns are not empty in each row of a batch.

#pragma once

#include <cstddef>
#include <cstdint>

#include "digits.h"
#include "row_format.h"

namespace clicks {

constexpr int kBatchRows = 512;  // fields, values and hash slots of a batch stay in the L2 cache

// Bits that mark which columns of each row are not empty.
struct Presence {
  static constexpr size_t kWords = kMaxColumns / 64;
  uint64_t words[kWords][kBatchRows] = {};

  CLICKS_INLINE bool operator()(int r, size_t c) const { return (words[c / 64][r] >> c % 64) & 1; }
  template <size_t kCount>
  void set(int r, const uint64_t (&row)[kCount]) {
    for (size_t w = 0; w < kCount; ++w) words[w][r] = row[w];
  }
  void copy(const Presence& source, int from, int to) {
    for (size_t w = 0; w < kWords; ++w) words[w][to] = source.words[w][from];
  }
};

}  // namespace clicks
