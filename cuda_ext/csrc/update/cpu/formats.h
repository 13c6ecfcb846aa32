// SPDX-License-Identifier: Apache-2.0
// How a table keeps its rows: float32, bfloat16 written with stochastic rounding, or float32 split
// into two planes. Each reads and writes vectors of float32 columns.
#pragma once

#include "../../cpu/weighted_sum.h"
#include "../kernels.h"
#include "../stochastic_rounding.h"

namespace recsys::cpu::RECSYS_ISA {

struct Float32Row {
  float* values;

  Float32Row(const UpdateArguments& arguments, int64_t row)
      : values(static_cast<float*>(arguments.table) + row * arguments.dim) {}

  static void prefetch(const UpdateArguments& arguments, int64_t row) {
    RECSYS_ISA::prefetch(static_cast<const float*>(arguments.table) + row * arguments.dim,
                         arguments.dim * static_cast<int64_t>(sizeof(float)));
  }

  template <typename Columns>
  Vector<float> read(Columns columns) const {
    return columns.read(values);
  }
  template <typename Columns>
  void write(Columns columns, Vector<float> weights) const {
    columns.write(values, weights);
  }
};

struct StochasticBFloat16Row {
  BFloat16* values;
  uint32_t key;

  StochasticBFloat16Row(const UpdateArguments& arguments, int64_t row)
      : values(static_cast<BFloat16*>(arguments.table) + row * arguments.dim),
        key(rounding_key(arguments.rounding_seed, static_cast<uint32_t>(*arguments.step), row)) {}

  static void prefetch(const UpdateArguments& arguments, int64_t row) {
    RECSYS_ISA::prefetch(static_cast<const BFloat16*>(arguments.table) + row * arguments.dim,
                         arguments.dim * static_cast<int64_t>(sizeof(BFloat16)));
  }

  template <typename Columns>
  Vector<float> read(Columns columns) const {
    return columns.read(values);
  }

  // Rounds in a plain array, which the compiler turns into vectors; the upper halves are then exact
  // in bfloat16, so that writing them rounds no more.
  template <typename Columns>
  void write(Columns columns, Vector<float> weights) const {
    uint32_t bits[kLanes<float>];
    memcpy(bits, &weights, sizeof(bits));
    for (int lane = 0; lane < kLanes<float>; ++lane) {
      const uint32_t random16 = column_bits(key, static_cast<uint32_t>(columns.begin + lane));
      bits[lane] = static_cast<uint32_t>(round_stochastically(bits[lane], random16)) << 16;
    }
    memcpy(&weights, bits, sizeof(bits));
    columns.write(values, weights);
  }
};

// float32 bits = (high << 16) + low. The high plane alone is the table rounded to bfloat16.
struct PlanarRow {
  BFloat16* high;
  int16_t* low;

  PlanarRow(const UpdateArguments& arguments, int64_t row)
      : high(static_cast<BFloat16*>(arguments.table) + row * arguments.dim),
        low(arguments.table_low + row * arguments.dim) {}

  static void prefetch(const UpdateArguments& arguments, int64_t row) {
    const PlanarRow planes(arguments, row);
    const int64_t bytes = arguments.dim * static_cast<int64_t>(sizeof(int16_t));
    RECSYS_ISA::prefetch(planes.high, bytes);
    RECSYS_ISA::prefetch(planes.low, bytes);
  }

  // The low plane read as bfloat16 is its bits in the upper half of each lane.
  template <typename Columns>
  Vector<float> read(Columns columns) const {
    const auto upper = (Vector<uint32_t>)columns.read(high);
    const auto lower = (Vector<int32_t>)columns.read(reinterpret_cast<const BFloat16*>(low));
    return (Vector<float>)(upper + (Vector<uint32_t>)(lower >> 16));
  }

  template <typename Columns>
  void write(Columns columns, Vector<float> weights) const {
    const auto bits = (Vector<uint32_t>)weights;
    const Vector<uint32_t> upper = (bits + 0x8000u) >> 16;
    write_bits(columns, reinterpret_cast<uint16_t*>(high), upper);
    write_bits(columns, reinterpret_cast<uint16_t*>(low), bits - (upper << 16));
  }

 private:
  static void write_bits(FullColumns columns, uint16_t* to, Vector<uint32_t> lower_halves) {
    const auto packed = __builtin_convertvector(lower_halves, Packed<BFloat16>);
    memcpy(to + columns.begin, &packed, sizeof(packed));
  }
  static void write_bits(PartialColumns columns, uint16_t* to, Vector<uint32_t> lower_halves) {
    const auto packed = __builtin_convertvector(lower_halves, Packed<BFloat16>);
    memcpy(to + columns.begin, &packed, static_cast<size_t>(columns.count) * sizeof(uint16_t));
  }
};

}  // namespace recsys::cpu::RECSYS_ISA
