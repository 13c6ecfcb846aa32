// SPDX-License-Identifier: Apache-2.0
// The sorted update in chunks. A segment is a run of equal sorted rows: the lookups of one table
// row. Teams take chunks of 32 sorted positions regardless of segments: the work is balanced even
// if one row occurs once and another ten thousand times, and the launch does not depend on the
// number of distinct rows. A segment inside a chunk is applied at once. A segment that crosses a
// chunk boundary leaves a sum per chunk, and a second kernel adds these up.
#pragma once

#include "row_update.cuh"

namespace recsys::kernels {

constexpr int kChunk = 32;  // as many positions as a ballot has bits

__host__ __device__ __forceinline__ int64_t chunks_of(int64_t count) {
  return (count + kChunk - 1) / kChunk;
}

// The sums that chunks leave: float32 [chunks, D] each.
struct ChunkSums {
  float* heads;    // of a segment that began in an earlier chunk
  float* tails;    // of one that began in this chunk and continues in the next
  float* scratch;  // of one inside this chunk; null if such sums stay in registers
};

// The positions of a chunk as bits: bit i stands for position begin + i.
struct ChunkSegments {
  int64_t begin;
  int size;            // positions in the chunk: 32, fewer in the last, 0 beyond it
  uint32_t ends;       // last positions of their segments
  bool starts_inside;  // the first segment began in an earlier chunk
  __device__ __forceinline__ bool ends_at(int i) const { return ((ends >> i) & 1) != 0; }
  // Whether the segment of position i began in an earlier chunk.
  __device__ __forceinline__ bool began_before(int i) const {
    return starts_inside && (ends & ((1u << i) - 1)) == 0;
  }
  __device__ __forceinline__ bool goes_on_after(int i) const {
    return i == size - 1 && !ends_at(i);
  }
};

// Reads the segments of the chunk of each team. The lanes of the warp read the chunks of its teams
// one after the other, so all of them must call this together.
__device__ __forceinline__ ChunkSegments find_segments(const RowNumbers& rows, int64_t count,
                                                       const Team& team) {
  const int warp_teams = kWarpLanes / team.lanes;
  const int in_warp = team.in_block & (warp_teams - 1);
  const int warp_lane = static_cast<int>(threadIdx.x) & (kWarpLanes - 1);
  const int64_t warp_begin = (team.index() - in_warp) * kChunk;
  ChunkSegments chunk{};
  chunk.begin = team.index() * kChunk;
  for (int i = 0; i < warp_teams; ++i) {
    const int64_t position = warp_begin + i * kChunk + warp_lane;
    const bool ends =
        position < count && (position + 1 == count || rows[position] != rows[position + 1]);
    const uint32_t mask = __ballot_sync(kAllLanes, ends);
    chunk.ends = i == in_warp ? mask : chunk.ends;
  }
  const int64_t left = count - chunk.begin;
  chunk.size = static_cast<int>(left < 0 ? 0 : (left < kChunk ? left : kChunk));
  chunk.starts_inside =
      chunk.size > 0 && chunk.begin > 0 && rows[chunk.begin - 1] == rows[chunk.begin];
  return chunk;
}

// The gradient row of a sorted position, and what it is multiplied by.
struct LookupGradient {
  int32_t row;
  float scale;
};

__device__ __forceinline__ LookupGradient lookup_gradient(const UpdateArguments& arguments,
                                                          int64_t position) {
  const int32_t lookup = load_global(arguments.positions + position);
  return {arguments.source == nullptr ? lookup : load_global(arguments.source + lookup),
          arguments.scale == nullptr ? 1.0f : load_global(arguments.scale + lookup)};
}

// The numbers of a sorted position.
struct Lookup {
  int64_t row;  // of the table; -1 for no row
  LookupGradient gradient;
};

// Reads the numbers of a position for this lane, so that a warp reads neighbouring ones at once.
__device__ __forceinline__ Lookup read_lookup(const UpdateArguments& arguments,
                                              const RowNumbers& rows, int64_t position) {
  Lookup lookup{-1, {0, 0.0f}};
  if (position < arguments.count) {
    const int64_t row = rows[position];
    lookup.gradient = lookup_gradient(arguments, position);
    lookup.row = is_row(row, arguments.num_table_rows) ? row : -1;
  }
  return lookup;
}

// Returns what a lane of the team has read. All lanes of the warp must call this together.
__device__ __forceinline__ Lookup lookup_of(const Lookup& own, const Team& team, int lane) {
  const int from = (static_cast<int>(threadIdx.x) & (kWarpLanes - 1) & ~(team.lanes - 1)) + lane;
  return {__shfl_sync(kAllLanes, own.row, from),
          {__shfl_sync(kAllLanes, own.gradient.row, from),
           __shfl_sync(kAllLanes, own.gradient.scale, from)}};
}

}  // namespace recsys::kernels
