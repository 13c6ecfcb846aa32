// SPDX-License-Identifier: Apache-2.0
// The lookup ops on the CPU: divides the work of their kernels among threads.
#include <cstdint>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

constexpr int64_t kIdsPerTask = 16384;

// Larger outputs would push everything else out of the caches, and be read from memory anyway.
constexpr int64_t kStreamedBytes = 16 << 20;

void lower(int64_t* smallest, int64_t candidate) {
  int64_t current = __atomic_load_n(smallest, __ATOMIC_RELAXED);
  while (candidate < current && !__atomic_compare_exchange_n(smallest, &current, candidate, true,
                                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace

void joint_rows(const JointRowsArguments& arguments) {
  const LookupKernels& lookup = kernels().lookup;
  const bool one_hot = arguments.bag_offsets == nullptr;
  parallel_for(one_hot ? arguments.count : arguments.num_bags, kIdsPerTask,
               [&](int64_t begin, int64_t end) {
                 lower(arguments.bad, lookup.joint_rows(arguments, begin, end));
               });
}

int64_t find_bad_row(const void* rows, IndexType type, int64_t count, int64_t num_table_rows) {
  const LookupKernels& lookup = kernels().lookup;
  int64_t bad = INT64_MAX;
  parallel_for(count, kIdsPerTask, [&](int64_t begin, int64_t end) {
    lower(&bad, lookup.first_bad_row(rows, type, num_table_rows, begin, end));
  });
  return bad == INT64_MAX ? -1 : bad;
}

void embedding_gather(const GatherArguments& arguments) {
  const LookupKernels& lookup = kernels().lookup;
  const int64_t row_bytes = arguments.dim * bytes_of(arguments.output_dtype);
  const bool whole_lines =
      row_bytes % 64 == 0 && reinterpret_cast<uintptr_t>(arguments.output) % 64 == 0;
  const bool streaming = whole_lines && arguments.count * row_bytes >= kStreamedBytes;
  parallel_for(arguments.count, lookups_per_task(arguments.dim), [&](int64_t begin, int64_t end) {
    lookup.gather(arguments, streaming, begin, end);
  });
}

void embedding_bag(const BagArguments& arguments) {
  const LookupKernels& lookup = kernels().lookup;
  parallel_for(arguments.num_bags, lookups_per_task(arguments.lookup.dim),
               [&](int64_t begin, int64_t end) { lookup.bag(arguments, begin, end); });
}

void embedding_bag_scale_backward(const BagScaleGradientArguments& arguments) {
  const LookupKernels& lookup = kernels().lookup;
  parallel_for(
      arguments.lookup.count, lookups_per_task(arguments.lookup.dim),
      [&](int64_t begin, int64_t end) { lookup.bag_scale_gradient(arguments, begin, end); });
}

}  // namespace recsys::cpu
