// SPDX-License-Identifier: Apache-2.0
// Second kernel of the sorted update: adds up the sums that chunks left of the segments that cross
// their boundaries, in the order of the chunks, and applies them.
//
// The team of the chunk in which a segment begins handles it. If a segment has more chunks than the
// block has teams, the teams of the block share it: each adds up a slice, then the first adds the
// slices. At most one such segment can begin among the chunks of a block.
#pragma once

#include "any_rows.cuh"

namespace recsys::kernels {

// A segment that begins in a chunk and continues in the next ones.
struct CrossingSegment {
  int64_t first_chunk;
  int64_t following;  // chunks after the first that hold lookups of it; 0: there is no such segment
  int64_t row;
};

// Returns the number of chunks after `chunk` in a row that begin with `row`.
__device__ __forceinline__ int64_t count_following(const RowNumbers& rows, int64_t count,
                                                   int64_t chunk, int64_t row) {
  const int64_t chunks = chunks_of(count);
  int64_t inside = 0;  // chunk + inside still holds the row, chunk + outside does not
  int64_t outside = 1;
  while (chunk + outside < chunks && rows[(chunk + outside) * kChunk] == row) {
    inside = outside;
    outside *= 2;
  }
  while (outside - inside > 1) {
    const int64_t middle = (inside + outside) / 2;
    if (chunk + middle < chunks && rows[(chunk + middle) * kChunk] == row) {
      inside = middle;
    } else {
      outside = middle;
    }
  }
  return inside;
}

__device__ __forceinline__ CrossingSegment find_crossing(const RowNumbers& rows,
                                                         const UpdateArguments& arguments,
                                                         int64_t chunk) {
  CrossingSegment segment{chunk, 0, -1};
  const int64_t begin = chunk * kChunk;
  const int64_t next = begin + kChunk;
  if (next >= arguments.count) {
    return segment;
  }
  segment.row = rows[next - 1];
  const bool crosses = rows[next] == segment.row;
  const bool begins_here =
      rows[begin] != segment.row || begin == 0 || rows[begin - 1] != segment.row;
  if (crosses && begins_here && is_row(segment.row, arguments.num_table_rows)) {
    segment.following = count_following(rows, arguments.count, chunk, segment.row);
  }
  return segment;
}

// Adds the heads of chunks [begin, end) to the sum at `target`, in order.
template <int Width>
__device__ __forceinline__ void add_heads(const float* heads, int64_t begin, int64_t end,
                                          int32_t dim, const Team& team, float* target) {
  constexpr int kInFlight = 8;
  for (int64_t column = team.lane * Width; column < dim; column += team.lanes * Width) {
    Columns<float, Width> sum = load_columns<Width>(target, column);
    for (int64_t base = begin; base < end; base += kInFlight) {
      Columns<float, Width> columns[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        columns[i] = {};
        if (base + i < end) {
          columns[i] = load_columns<Width>(heads + (base + i) * dim, column);
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
        for (int j = 0; j < Width; ++j) {
          sum.values[j] += columns[i].values[j];
        }
      }
    }
    store_columns(target, column, sum);
  }
}

// The slice of a shared segment that each team adds up: the sum replaces the slice's first head.
struct Slices {
  int64_t begin;  // first head of the segment
  int64_t end;
  int64_t length;
};

template <int Width>
__device__ __forceinline__ void add_slice(const ChunkSums& chunk_sums, const Slices& slices,
                                          int32_t dim, const Team& team) {
  const int64_t begin = slices.begin + team.in_block * slices.length;
  const int64_t limit = begin + slices.length;
  const int64_t end = limit < slices.end ? limit : slices.end;
  if (begin < end) {
    add_heads<Width>(chunk_sums.heads, begin + 1, end, dim, team, chunk_sums.heads + begin * dim);
  }
}

// Adds the sums of the slices to the sum at `target`, in order.
template <int Width>
__device__ __forceinline__ void add_slice_sums(const ChunkSums& chunk_sums, const Slices& slices,
                                               int32_t dim, const Team& team, float* target) {
  for (int64_t column = team.lane * Width; column < dim; column += team.lanes * Width) {
    Columns<float, Width> sum = load_columns<Width>(target, column);
    for (int64_t head = slices.begin; head < slices.end; head += slices.length) {
      const auto columns = load_columns<Width>(chunk_sums.heads + head * dim, column);
#pragma unroll
      for (int j = 0; j < Width; ++j) {
        sum.values[j] += columns.values[j];
      }
    }
    store_columns(target, column, sum);
  }
}

// Most blocks find that nothing crosses and return at once: three of them share a multiprocessor.
template <int Width>
__global__ void __launch_bounds__(kBlockThreads, 3)
    apply_crossing_segments(UpdateArguments arguments, ChunkSums chunk_sums, int lanes) {
  __shared__ CrossingSegment shared_segment;
  if (arguments.overflow != nullptr && load_global(arguments.overflow)) {
    return;
  }
  const Team team(lanes);
  const StepScalars scalars = step_scalars(arguments);
  const RowNumbers rows = row_numbers(arguments.rows, arguments.row_type);
  if (threadIdx.x == 0) {
    shared_segment.following = 0;
  }
  __syncthreads();
  CrossingSegment segment = find_crossing(rows, arguments, team.index());
  const bool is_long = segment.following >= team.block_teams;
  if (is_long && team.lane == 0) {
    shared_segment = segment;
  }
  float* target = chunk_sums.tails + segment.first_chunk * arguments.dim;
  if (segment.following > 0 && !is_long) {
    add_heads<Width>(chunk_sums.heads, segment.first_chunk + 1,
                     segment.first_chunk + 1 + segment.following, arguments.dim, team, target);
  }
  const bool applies = segment.following > 0 && !is_long;
  apply_row<Width>(arguments, scalars, team, applies ? segment.row : -1, target);
  __syncthreads();
  segment = shared_segment;
  if (segment.following == 0) {
    return;
  }
  const int64_t begin = segment.first_chunk + 1;
  const Slices slices{begin, begin + segment.following,
                      (segment.following + team.block_teams - 1) / team.block_teams};
  add_slice<Width>(chunk_sums, slices, arguments.dim, team);
  __syncthreads();
  target = chunk_sums.tails + segment.first_chunk * arguments.dim;
  if (team.in_block == 0) {
    add_slice_sums<Width>(chunk_sums, slices, arguments.dim, team, target);
  }
  apply_row<Width>(arguments, scalars, team, team.in_block == 0 ? segment.row : -1, target);
}

}  // namespace recsys::kernels
