// SPDX-License-Identifier: Apache-2.0
// Stable sort of the looked-up rows: CUB's radix sort on the device, the standard library's in the
// emulator. Only this file includes CUB, which compiles for longer than all kernels together.
#include "../../cuda/dispatch.cuh"
#include "../update_arguments.h"

#ifdef RECSYS_EMULATOR
#include <algorithm>
#else
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>
#endif

namespace recsys::kernels {

// Keys and values of the sort: a row outside the table becomes -1, whose bits are above those of
// every row, so that all such rows end up last.
template <typename Row>
__global__ void make_sort_keys(const Row* rows, int64_t count, int64_t num_table_rows, Row* keys,
                               int32_t* positions) {
  const int64_t position = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (position < count) {
    const Row row = load_global(rows + position);
    store_global(keys + position, is_row(row, num_table_rows) ? row : static_cast<Row>(-1));
    store_global(positions + position, static_cast<int32_t>(position));
  }
}

}  // namespace recsys::kernels

namespace recsys::device {

using namespace kernels;

namespace {

// Keys and values, both of `count`, then the sort's own memory.
template <typename Row>
struct SortWorkspace {
  Row* keys;
  int32_t* positions;
  void* rest;
};

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <typename Row>
size_t keys_and_positions_bytes(int64_t count) {
  return aligned(sizeof(Row) * count) + aligned(sizeof(int32_t) * count);
}

template <typename Row>
SortWorkspace<Row> split_workspace(const SortArguments& arguments) {
  char* memory = static_cast<char*>(arguments.workspace);
  return {reinterpret_cast<Row*>(memory),
          reinterpret_cast<int32_t*>(memory + aligned(sizeof(Row) * arguments.count)),
          memory + keys_and_positions_bytes<Row>(arguments.count)};
}

#ifdef RECSYS_EMULATOR

template <typename Row>
int sort_pairs(void*, size_t& bytes, const Row* keys, const SortArguments& arguments,
               const int32_t* positions, void*) {
  bytes = 0;
  if (keys == nullptr) {
    return 0;
  }
  using Key = std::make_unsigned_t<Row>;
  std::copy(positions, positions + arguments.count, arguments.positions);
  std::stable_sort(
      arguments.positions, arguments.positions + arguments.count,
      [&](int32_t a, int32_t b) { return static_cast<Key>(keys[a]) < static_cast<Key>(keys[b]); });
  for (int64_t i = 0; i < arguments.count; ++i) {
    static_cast<Row*>(arguments.sorted_rows)[i] = keys[arguments.positions[i]];
  }
  return 0;
}

#else

// Bits of a key that the sort looks at. The lowest bits of -1 stay above those of every row: the
// number of rows itself must have room.
int key_bits(int64_t num_table_rows, int most) {
  int bits = 1;
  while (bits < most && (num_table_rows >> bits) != 0) {
    ++bits;
  }
  return bits;
}

// Null `memory` only requests its size.
template <typename Row>
int sort_pairs(void* memory, size_t& bytes, const Row* keys, const SortArguments& arguments,
               const int32_t* positions, void* stream) {
  using Key = std::make_unsigned_t<Row>;
  return static_cast<int>(cub::DeviceRadixSort::SortPairs(
      memory, bytes, reinterpret_cast<const Key*>(keys), static_cast<Key*>(arguments.sorted_rows),
      positions, arguments.positions, static_cast<uint32_t>(arguments.count), 0,
      key_bits(arguments.num_table_rows, static_cast<int>(8 * sizeof(Key))),
      static_cast<cudaStream_t>(stream)));
}

#endif

template <typename Row>
size_t workspace_bytes(const SortArguments& arguments) {
  size_t bytes = 0;
  const Row* keys = nullptr;
  const int32_t* positions = nullptr;
  if (sort_pairs<Row>(nullptr, bytes, keys, arguments, positions, nullptr) != 0) {
    return 0;
  }
  return keys_and_positions_bytes<Row>(arguments.count) + bytes;
}

template <typename Row>
int sort_rows_of(const SortArguments& arguments, void* stream) {
  const SortWorkspace<Row> workspace = split_workspace<Row>(arguments);
  const int status =
      launch(make_sort_keys<Row>, blocks_for(arguments.count, kBlockThreads), kBlockThreads, 0,
             stream, static_cast<const Row*>(arguments.rows), arguments.count,
             arguments.num_table_rows, workspace.keys, workspace.positions);
  if (status != 0) {
    return status;
  }
  const size_t total = workspace_bytes<Row>(arguments);
  if (total == 0) {
    return kInvalidValue;
  }
  size_t bytes = total - keys_and_positions_bytes<Row>(arguments.count);
  return sort_pairs<Row>(workspace.rest, bytes, workspace.keys, arguments, workspace.positions,
                         stream);
}

}  // namespace

size_t sort_workspace_bytes(const SortArguments& arguments) {
  return arguments.row_type == IndexType::kInt64 ? workspace_bytes<int64_t>(arguments)
                                                 : workspace_bytes<int32_t>(arguments);
}

int sort_rows(const SortArguments& arguments, void* stream) {
  if (arguments.count == 0) {
    return 0;
  }
  return arguments.row_type == IndexType::kInt64 ? sort_rows_of<int64_t>(arguments, stream)
                                                 : sort_rows_of<int32_t>(arguments, stream);
}

}  // namespace recsys::device
