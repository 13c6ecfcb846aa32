// SPDX-License-Identifier: Apache-2.0
// SGD without a sort: each thread owns some of the rows and applies all their lookups, in order. So
// gradients are read sequentially, no two threads write the same row, and the bits do not depend on
// the number of threads.
#pragma once

#include "../../cpu/weighted_sum.h"
#include "../../lookup/cpu/joint_rows.h"
#include "../update_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr int64_t kOwnedBlock = 4096;

// The thread that owns a row: a multiplicative hash spreads blocks of 16 neighbours, so that
// neither the rows of one feature nor the frequent ones at its beginning all go to one thread.
inline uint32_t owner_of(int64_t row, uint32_t num_owners) {
  const uint32_t spread = static_cast<uint32_t>(row >> 4) * 0x9e3779b1u;
  return static_cast<uint32_t>((uint64_t{spread} * num_owners) >> 32);
}

// Writes the positions in [begin, end) that an owner has to apply; returns how many.
template <typename Row>
int64_t owned_positions(const Row* rows, int64_t begin, int64_t end, uint32_t owner,
                        uint32_t num_owners, int32_t* owned) {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    owned[count] = static_cast<int32_t>(i);
    count += owner_of(rows[i], num_owners) == owner;
  }
  return count;
}

template <typename Gradient, typename Row>
void sgd_unsorted_of(const UpdateArguments& arguments, uint32_t owner, uint32_t num_owners) {
  const int dim = arguments.dim;
  const auto* rows = static_cast<const Row*>(arguments.rows);
  const auto* gradients = static_cast<const Gradient*>(arguments.gradients);
  auto* table = static_cast<float*>(arguments.table);
  const float rate =
      *arguments.lr * (arguments.inverse_scale == nullptr ? 1.0f : *arguments.inverse_scale);
  const int64_t distance = prefetch_distance(dim * int64_t{4});
  const auto gradient_of = [&](int64_t i) {
    return gradients + (arguments.source == nullptr ? i : arguments.source[i]) * dim;
  };
  int32_t owned[kOwnedBlock];
  for (int64_t begin = 0; begin < arguments.count; begin += kOwnedBlock) {
    const int64_t rest = arguments.count - begin;
    const int64_t end = begin + (rest < kOwnedBlock ? rest : kOwnedBlock);
    const int64_t count = owned_positions(rows, begin, end, owner, num_owners, owned);
    for (int64_t k = 0; k < count; ++k) {
      if (k + distance < count) {
        const int64_t later = owned[k + distance];
        prefetch(table + rows[later] * int64_t{dim}, dim * int64_t{4});
        prefetch(gradient_of(later), dim * static_cast<int64_t>(sizeof(Gradient)));
      }
      const int64_t i = owned[k];
      const Gradient* gradient = gradient_of(i);
      float* weights = table + rows[i] * int64_t{dim};
      const float factor = arguments.scale == nullptr ? rate : rate * arguments.scale[i];
      for_each_columns(0, dim, [&](auto columns) {
        columns.write(weights, columns.read(weights) - columns.read(gradient) * factor);
      });
    }
  }
}

inline void sgd_unsorted(const UpdateArguments& arguments, int owner, int num_owners) {
  with_stored(arguments.gradient_dtype, [&](auto gradient) {
    const auto run = arguments.row_type == IndexType::kInt32
                         ? sgd_unsorted_of<decltype(gradient), int32_t>
                         : sgd_unsorted_of<decltype(gradient), int64_t>;
    run(arguments, static_cast<uint32_t>(owner), static_cast<uint32_t>(num_owners));
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
