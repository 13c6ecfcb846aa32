// SPDX-License-Identifier: Apache-2.0
// Dropout: one pass over values and random bytes.
#pragma once

#include "../../cpu/vector.h"
#include "table.h"

namespace recsys::cpu::RECSYS_ISA {

template <typename Stored>
void drop(const DropoutArguments& arguments, int64_t begin, int64_t end) {
  using T = Compute<Stored>;
  const Stored* const values = static_cast<const Stored*>(arguments.values);
  Stored* const results = static_cast<Stored*>(arguments.results);
  const T levels = static_cast<T>(arguments.dropped_levels);
  const T factor = T{256} / (T{256} - levels);
  int64_t i = begin;
  for (; i + kLanes<T> <= end; i += kLanes<T>) {
    const Vector<T> factors = kept_factors<T>(arguments.draws + i, levels, factor);
    store(results + i, load(values + i) * factors);
  }
  for (; i < end; ++i) {
    narrow(widen(values[i]) * (arguments.draws[i] >= levels ? factor : T{0}), results[i]);
  }
}

inline void drop_range(const DropoutArguments& arguments, int64_t begin, int64_t end) {
  with_stored(arguments.dtype, [&](auto stored) { drop<decltype(stored)>(arguments, begin, end); });
}

constexpr DropoutKernels kDropoutKernels = {drop_range};

}  // namespace recsys::cpu::RECSYS_ISA
