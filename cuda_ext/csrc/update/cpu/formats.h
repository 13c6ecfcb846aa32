// SPDX-License-Identifier: Apache-2.0
// Formats in which a table stores its rows: float32, or bfloat16 written with stochastic rounding.
// Each reads and writes vectors of float32 columns.
#pragma once

#include "../../cpu/weighted_sum.h"
#include "../stochastic_rounding.h"
#include "../update_arguments.h"

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

  // Rounds in a plain array, which the compiler vectorizes; the upper halves are then exact in
  // bfloat16, so writing them does not round again.
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

}  // namespace recsys::cpu::RECSYS_ISA
