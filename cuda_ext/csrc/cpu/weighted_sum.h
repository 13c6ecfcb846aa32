// SPDX-License-Identifier: Apache-2.0
// Weighted sums of scattered rows, in the order of the lookups. The sums stay in registers: a block
// of columns goes through all lookups before the next block does.
#pragma once

#include "vector.h"

namespace recsys::cpu::RECSYS_ISA {

// About as many rows ahead as memory needs to answer: 4 KB of long rows, 32 short ones.
inline int64_t prefetch_distance(int64_t row_bytes) {
  const int64_t rows = row_bytes > 0 ? 4096 / row_bytes : 0;
  return rows < 4 ? 4 : (rows > 32 ? 32 : rows);
}

// One vector of columns from `begin` on. Code that works on columns is a template over this type
// and the next.
struct FullColumns {
  int begin;

  template <typename Stored>
  Vector<float> read(const Stored* row) const {
    return load(row + begin);
  }
  template <typename Stored>
  void write(Stored* row, Vector<float> values) const {
    store(row + begin, values);
  }
};

// The last `count` columns, fewer than a vector.
struct PartialColumns {
  int begin;
  int count;

  template <typename Stored>
  Vector<float> read(const Stored* row) const {
    return load_partial(row + begin, count);
  }
  template <typename Stored>
  void write(Stored* row, Vector<float> values) const {
    store_partial(row + begin, values, count);
  }
};

// Calls body with each vector of `dim` columns, from `begin` on. Without always_inline, GCC does
// not inline this, and the calls take a quarter of the time of short rows.
template <typename Body>
__attribute__((always_inline)) inline void for_each_columns(int begin, int dim, const Body& body) {
  constexpr int kWidth = kLanes<float>;
  int column = begin;
  for (; column + kWidth <= dim; column += kWidth) {
    body(FullColumns{column});
  }
  if (column < dim) {
    body(PartialColumns{column, dim - column});
  }
}

// Lookups has the type Stored of the rows, row(i), weight(i) and prefetch(i), which asks for what
// a later lookup reads.
template <int kVectors, typename Lookups, typename Output>
inline void sum_block(const Lookups& lookups, int64_t begin, int64_t end, int column,
                      Output* output) {
  using Stored = typename Lookups::Stored;
  Vector<float> sums[kVectors] = {};
  for (int64_t i = begin; i < end; ++i) {
    if (column == 0) {
      lookups.prefetch(i);
    }
    const Stored* row = lookups.row(i) + column;
    const auto weight = lookups.weight(i);
    for (int k = 0; k < kVectors; ++k) {
      sums[k] += load(row + k * kLanes<float>) * weight;
    }
  }
  for (int k = 0; k < kVectors; ++k) {
    store(output + column + k * kLanes<float>, sums[k]);
  }
}

// output[d] = sum over lookups [begin, end) of weight(i) * row(i)[d].
template <typename Lookups, typename Output>
inline void sum_rows(const Lookups& lookups, int64_t begin, int64_t end, int dim, Output* output) {
  constexpr int kWidth = kLanes<float>;
  int column = 0;
  for (; column + 8 * kWidth <= dim; column += 8 * kWidth) {
    sum_block<8>(lookups, begin, end, column, output);
  }
  for (; column + 2 * kWidth <= dim; column += 2 * kWidth) {
    sum_block<2>(lookups, begin, end, column, output);
  }
  for_each_columns(column, dim, [&](auto columns) {
    Vector<float> total = {};
    for (int64_t i = begin; i < end; ++i) {
      if (columns.begin == 0) {
        lookups.prefetch(i);
      }
      total += columns.read(lookups.row(i)) * lookups.weight(i);
    }
    columns.write(output, total);
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
