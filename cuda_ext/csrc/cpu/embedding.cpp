// SPDX-License-Identifier: Apache-2.0
// The embedding ops on the CPU: shares the work of the kernels among threads.
#include <algorithm>
#include <cstdint>

#include "../backends.h"
#include "embedding_kernels_table.h"
#include "kernel_table.h"
#include "parallel.h"

namespace recsys::cpu {
namespace {

constexpr int64_t kIdsPerTask = 16384;
constexpr int64_t kBytesPerTask = 64 << 10;

// Larger outputs would push everything else out of the caches, and be read from memory anyway.
constexpr int64_t kStreamedBytes = 16 << 20;

int64_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return 8;
    case Dtype::kFloat32:
      return 4;
    default:
      return 2;
  }
}

// Lookups worth a thread of their own.
int64_t lookups_per_task(int64_t dim) {
  return kBytesPerTask / (4 * std::clamp<int64_t>(dim, 1, 4096));
}

void lower(int64_t* smallest, int64_t found) {
  int64_t current = __atomic_load_n(smallest, __ATOMIC_RELAXED);
  while (found < current && !__atomic_compare_exchange_n(smallest, &current, found, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace

void joint_rows(const JointRowsArguments& arguments) {
  const EmbeddingKernels& embedding = kernels().embedding;
  const bool one_hot = arguments.bag_offsets == nullptr;
  parallel_for(one_hot ? arguments.count : arguments.num_bags, kIdsPerTask,
               [&](int64_t begin, int64_t end) {
                 lower(arguments.bad, embedding.joint_rows(arguments, begin, end));
               });
}

int64_t find_bad_row(const void* rows, IndexType type, int64_t count, int64_t num_table_rows) {
  const EmbeddingKernels& embedding = kernels().embedding;
  int64_t bad = INT64_MAX;
  parallel_for(count, kIdsPerTask, [&](int64_t begin, int64_t end) {
    lower(&bad, embedding.first_bad_row(rows, type, num_table_rows, begin, end));
  });
  return bad == INT64_MAX ? -1 : bad;
}

void embedding_gather(const GatherArguments& arguments) {
  const EmbeddingKernels& embedding = kernels().embedding;
  const int64_t row_bytes = arguments.dim * bytes_of(arguments.output_dtype);
  const bool whole_lines =
      row_bytes % 64 == 0 && reinterpret_cast<uintptr_t>(arguments.output) % 64 == 0;
  const bool streaming = whole_lines && arguments.count * row_bytes >= kStreamedBytes;
  parallel_for(arguments.count, lookups_per_task(arguments.dim), [&](int64_t begin, int64_t end) {
    embedding.gather(arguments, streaming, begin, end);
  });
}

void embedding_bag(const BagArguments& arguments) {
  const EmbeddingKernels& embedding = kernels().embedding;
  parallel_for(arguments.num_bags, lookups_per_task(arguments.lookup.dim),
               [&](int64_t begin, int64_t end) { embedding.bag(arguments, begin, end); });
}

void embedding_bag_scale_backward(const BagScaleGradientArguments& arguments) {
  const EmbeddingKernels& embedding = kernels().embedding;
  parallel_for(
      arguments.lookup.count, lookups_per_task(arguments.lookup.dim),
      [&](int64_t begin, int64_t end) { embedding.bag_scale_gradient(arguments, begin, end); });
}

size_t update_workspace_bytes(const UpdateArguments& arguments) {
  const int64_t chunks = (arguments.count + kUpdateChunk - 1) / kUpdateChunk;
  return static_cast<size_t>(2 * chunks * arguments.dim) * sizeof(float);
}

void update_rows(const UpdateArguments& arguments) {
  if (arguments.overflow != nullptr && *arguments.overflow) {
    return;
  }
  const EmbeddingKernels& embedding = kernels().embedding;
  const int64_t chunks = (arguments.count + kUpdateChunk - 1) / kUpdateChunk;
  parallel_for(chunks, 1,
               [&](int64_t begin, int64_t end) { embedding.update_chunks(arguments, begin, end); });
  parallel_for(chunks, 16, [&](int64_t begin, int64_t end) {
    embedding.update_crossing_rows(arguments, begin, end);
  });
}

void sgd_rows_unsorted(const UnsortedSgdArguments& arguments) {
  const UpdateArguments& update = arguments.update;
  if (update.overflow != nullptr && *update.overflow) {
    return;
  }
  const EmbeddingKernels& embedding = kernels().embedding;
  const bool is_small = update.count <= 2 * lookups_per_task(update.dim);
  const int owners = is_small ? 1 : num_threads();
  parallel_for(owners, 1, [&](int64_t begin, int64_t end) {
    for (int64_t owner = begin; owner < end; ++owner) {
      embedding.sgd_unsorted(update, static_cast<int>(owner), owners);
    }
  });
}

}  // namespace recsys::cpu
