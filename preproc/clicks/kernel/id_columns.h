// SPDX-License-Identifier: Apache-2.0
// Categorical columns: those of the text, then the bins of the numbers.

#pragma once

#include <algorithm>
#include <bitset>
#include <cmath>
#include <cstdint>

#include "kernel_choice.h"
#include "memory.h"

namespace clicks {

// x % modulus by two multiplications; exact for 32 bits (Lemire, Kaser, Kurz 2019).
class Modulus {
 public:
  // modulus: 0 and 2**32 leave numbers unchanged.
  explicit Modulus(uint64_t modulus) : modulus_(modulus), inverse_(0) {
    if (modulus > 0 && modulus < (uint64_t{1} << 32)) inverse_ = UINT64_MAX / modulus + 1;
    is_one_ = modulus == 1;
  }
  bool changes_nothing() const { return inverse_ == 0 && !is_one_; }
  CLICKS_INLINE uint32_t operator()(uint32_t x) const {
    if (inverse_ == 0) return is_one_ ? 0 : x;
    const uint64_t fraction = inverse_ * x;
    return static_cast<uint32_t>((static_cast<unsigned __int128>(fraction) * modulus_) >> 64);
  }

 private:
  uint64_t modulus_;
  uint64_t inverse_;
  bool is_one_;
};

// Bin of a number x: x itself up to 2, floor(ln(x)^2) + 2 above.
//
// No ln(x)^2 of an integer comes nearer than 6e-10 to the next bin, so float64 suffices.
class Bins {
 public:
  explicit Bins(const RowHeader& rule) : minimum_(rule.minimum) {
    if (rule.bins_numerical == 0) return;
    small_ = Pages<uint32_t>(kSmall);
    for (int32_t x = 0; x < kSmall; ++x) small_[static_cast<size_t>(x)] = of(x);
  }
  CLICKS_INLINE uint32_t operator()(int32_t raw) const {
    const int64_t x = std::max<int64_t>(raw, minimum_);
    return 0 <= x && x < kSmall ? small_[static_cast<size_t>(x)] : of(x);
  }

 private:
  static constexpr int32_t kSmall = 1 << 12;

  static uint32_t of(int64_t x) {
    if (x <= 2) return static_cast<uint32_t>(x);
    const double log = std::log(static_cast<double>(x));
    return static_cast<uint32_t>(log * log) + 2;
  }

  int64_t minimum_;
  Pages<uint32_t> small_;
};

class IdColumns {
 public:
  explicit IdColumns(const RowFormat& format)
      : modulus_(format.modulus),
        bins_(format),
        categoricals_(static_cast<int>(format.num_categorical)),
        count_(categoricals_ +
               (format.bins_numerical != 0 ? static_cast<int>(format.num_numerical) : 0)),
        num_lists_(static_cast<int>(format.num_lists)) {
    for (const Field& field : format.fields) {
      if (field.has_wide_keys()) wide_.set(static_cast<size_t>(of(field)));
      if (field.lacks_edges != 0) wide_.set(field.bin_column);
    }
  }

  // Index of the column of a categorical field.
  int of(const Field& field) const { return field.column + (field.role == kListRole ? count_ : 0); }

  // Number of columns with one category per row; list columns follow.
  int count() const { return count_; }
  int num_lists() const { return num_lists_; }
  bool has_wide_keys(int column) const { return wide_[static_cast<size_t>(column)]; }
  bool has_wide_keys() const { return wide_.any(); }
  const WideKey& wide_key(const RowBatch& batch, int row, int column) const {
    return batch.keys[batch.category_at(static_cast<size_t>(row), static_cast<size_t>(column))];
  }

  // Copies the narrow categories of a column in rows [from, from + count) of a batch.
  void copy(const RowBatch& batch, int from, int count, int column, uint32_t* categories) const {
    const auto first = static_cast<size_t>(from);
    if (column >= categoricals_) {
      const auto number = static_cast<size_t>(column - categoricals_);
      const int32_t* values = batch.numerical.data() + batch.number_at(first, number);
      const size_t step = batch.number_at.row_step;
      for (int r = 0; r < count; ++r) categories[r] = bins_(values[static_cast<size_t>(r) * step]);
      return;
    }
    const uint32_t* values =
        batch.categorical.data() + batch.category_at(first, static_cast<size_t>(column));
    const size_t step = batch.category_at.row_step;
    for (int r = 0; r < count; ++r) categories[r] = values[static_cast<size_t>(r) * step];
    if (modulus_.changes_nothing()) return;
    for (int r = 0; r < count; ++r) categories[r] = modulus_(categories[r]);
  }

 private:
  Modulus modulus_;
  Bins bins_;
  int categoricals_;
  int count_;
  int num_lists_;
  std::bitset<kMaxColumns> wide_;  // columns whose categories are wide keys
};

}  // namespace clicks
