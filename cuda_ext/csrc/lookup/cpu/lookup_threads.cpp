// SPDX-License-Identifier: Apache-2.0
// The lookup ops on the CPU: divides the work of their kernels among threads.
#include <cstdint>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

constexpr int64_t kIdsPerTask = 16384;

// Larger outputs would evict everything else from the caches, and be read from memory anyway.
constexpr int64_t kStreamedBytes = 16 << 20;

void lower(int64_t* smallest, int64_t candidate) {
  int64_t current = __atomic_load_n(smallest, __ATOMIC_RELAXED);
  while (candidate < current && !__atomic_compare_exchange_n(smallest, &current, candidate, true,
                                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Samples whose ids stay in the first-level cache while they are read column by column.
constexpr int64_t kStackedSamples = 128;

template <typename Id, typename Column>
void stack_column(const Column* column, Id* ids, int64_t stride, int64_t samples) {
  for (int64_t sample = 0; sample < samples; ++sample) {
    ids[sample * stride] = static_cast<Id>(column[sample]);
  }
}

template <typename Id>
void stack_samples(const StackIdsArguments& arguments, int64_t begin, int64_t end) {
  Id* ids = static_cast<Id*>(arguments.ids) + begin * arguments.stride;
  for (int32_t i = 0; i < arguments.num_columns; ++i, ++ids) {
    with_index_type(arguments.column_types[i], [&](auto id) {
      const auto* column = static_cast<const decltype(id)*>(arguments.columns[i]) + begin;
      stack_column(column, ids, arguments.stride, end - begin);
    });
  }
}

}  // namespace

void stack_ids(const StackIdsArguments& arguments) {
  const int64_t task = kIdsPerTask / arguments.num_columns;
  parallel_for(arguments.batch, task, [&](int64_t first, int64_t last) {
    for (int64_t begin = first; begin < last; begin += kStackedSamples) {
      const int64_t end = begin + kStackedSamples < last ? begin + kStackedSamples : last;
      if (arguments.wide) {
        stack_samples<int64_t>(arguments, begin, end);
      } else {
        stack_samples<int32_t>(arguments, begin, end);
      }
    }
  });
}

void joint_rows(const JointRowsArguments& arguments) {
  const bool one_hot = arguments.bag_offsets == nullptr;
  parallel_for(one_hot ? arguments.count : arguments.num_bags, kIdsPerTask,
               [&](int64_t begin, int64_t end) {
                 lower(arguments.bad, kernels().joint_rows(arguments, begin, end));
               });
}

int64_t find_bad_row(const void* rows, IndexType type, int64_t count, int64_t num_table_rows) {
  int64_t bad = INT64_MAX;
  parallel_for(count, kIdsPerTask, [&](int64_t begin, int64_t end) {
    lower(&bad, kernels().first_bad_row(rows, type, num_table_rows, begin, end));
  });
  return bad == INT64_MAX ? -1 : bad;
}

void embedding_gather(const GatherArguments& arguments) {
  const int64_t row_bytes = arguments.dim * bytes_of(arguments.output_dtype);
  const bool whole_lines =
      row_bytes % 64 == 0 && reinterpret_cast<uintptr_t>(arguments.output) % 64 == 0;
  const bool streaming = whole_lines && arguments.count * row_bytes >= kStreamedBytes;
  parallel_for(arguments.count, lookups_per_task(arguments.dim), [&](int64_t begin, int64_t end) {
    kernels().gather(arguments, streaming, begin, end);
  });
}

void embedding_bag(const BagArguments& arguments) {
  parallel_for(arguments.num_bags, lookups_per_task(arguments.lookup.dim),
               [&](int64_t begin, int64_t end) { kernels().bag(arguments, begin, end); });
}

}  // namespace recsys::cpu
