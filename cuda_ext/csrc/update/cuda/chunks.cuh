// SPDX-License-Identifier: Apache-2.0
// First kernel of the sorted update, for rows that a team reads at once: sums the segments of each
// chunk and applies those that lie inside it.
#pragma once

#include "segments.cuh"

namespace recsys::kernels {

// Lookups that a team loads at once: their gradients, and the rows that end among them. Other lanes
// of the team supply their numbers, so that no load waits for another; a team has at least as many
// lanes.
constexpr int kFewestLanes = 4;
template <typename Rule>
constexpr int kLookupsInFlight = Rule::kElementStates > 1 ? 2 : kFewestLanes;

// Writes the sum of a segment that crosses a boundary of its chunk.
template <int Width>
__device__ __forceinline__ void store_chunk_sum(const ChunkSums& chunk_sums, int64_t chunk,
                                                bool began_before, int64_t dim, int64_t column,
                                                const float (&sums)[Width]) {
  Columns<float, Width> columns;
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    columns.values[i] = sums[i];
  }
  store_columns(began_before ? chunk_sums.heads : chunk_sums.tails, chunk * dim + column, columns);
}

// No thread leaves early: ballots and sums take whole warps.
template <typename Rule, typename Format, typename Gradient, int Width>
__global__ void update_chunks(UpdateArguments arguments, ChunkSums chunk_sums, int lanes) {
  if (arguments.overflow != nullptr && load_global(arguments.overflow)) {
    return;
  }
  constexpr int kInFlight = kLookupsInFlight<Rule>;
  const Team team(lanes);
  StepScalars scalars(arguments);
  Rule::prepare(scalars);
  const RowNumbers rows = row_numbers(arguments.rows, arguments.row_type);
  const ChunkSegments chunk = find_segments(rows, arguments.count, team);
  const int64_t column = team.lane * Width;
  const bool has_columns = column < arguments.dim;
  const int64_t dim = arguments.dim;
  const auto* gradients = static_cast<const Gradient*>(arguments.gradients);
  float sums[Width] = {};
  // Each lane holds the numbers of one of the next `lanes` positions.
  Lookup own = read_lookup(arguments, rows, chunk.begin + team.lane);
  for (int base = 0; base < kChunk; base += kInFlight) {
    Lookup lookup[kInFlight];
    float row_state[kInFlight];
    bool applies[kInFlight];
    RawColumns<Gradient, Width> gradient[kInFlight];
    LoadedColumns<Rule, Format, Width> loaded[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = base + i;
      lookup[i] = lookup_of(own, team, at & (team.lanes - 1));
      const bool valid = lookup[i].row >= 0;
      applies[i] = valid && chunk.ends_at(at) && !chunk.began_before(at);
      row_state[i] = 0;
      gradient[i] = {};
      loaded[i] = {};
      if constexpr (Rule::kRowStates > 0) {
        row_state[i] = applies[i] ? load_global(arguments.state[0] + lookup[i].row) : 0.0f;
      }
      if (valid && has_columns) {
        gradient[i] = load_raw_columns<Width>(gradients, lookup[i].gradient.row * dim + column);
      }
      if (applies[i] && has_columns) {
        loaded[i] = load_row_and_state<Rule, Format, Width>(arguments, lookup[i].row, column);
      }
    }
    const int next = base + kInFlight;
    if (next < kChunk && (next & (team.lanes - 1)) == 0) {
      own = read_lookup(arguments, rows, chunk.begin + next + team.lane);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = base + i;
#pragma unroll
      for (int j = 0; j < Width; ++j) {
        sums[j] += lookup[i].gradient.scale * convert<float>(gradient[i][j]);
      }
      float rate = scalars.lr;
      if constexpr (Rule::kRowStates > 0) {
        if (__ballot_sync(kAllLanes, applies[i]) != 0) {
          const float terms = team.sum(sum_row_terms(scalars, loaded[i], sums));
          __syncwarp();  // all lanes have read the state that one of them writes
          if (applies[i]) {
            rate = move_row<Rule>(arguments, scalars, team, lookup[i].row, row_state[i], terms);
          }
        }
      }
      if (applies[i]) {
        if (has_columns) {
          apply_columns(arguments, scalars, lookup[i].row, column, loaded[i], sums, rate);
        }
      } else if (has_columns && lookup[i].row >= 0 &&
                 (chunk.ends_at(at) || chunk.goes_on_after(at))) {
        store_chunk_sum(chunk_sums, team.index(), chunk.began_before(at), arguments.dim, column,
                        sums);
      }
      if (chunk.ends_at(at)) {
#pragma unroll
        for (int j = 0; j < Width; ++j) {
          sums[j] = 0;
        }
      }
    }
  }
}

}  // namespace recsys::kernels
