// SPDX-License-Identifier: Apache-2.0
// The sorted update of rows of any length: a segment's sum goes through memory, so a row may be
// longer than what a warp reads at once. Rule, format and gradient type are chosen at run time:
// these kernels are bound by memory, not by branches.
#pragma once

#include "segments.cuh"

namespace recsys::kernels {

// Applies the sum at `sums` to a row; row -1 applies nothing but takes part. All lanes of the warp
// must call this together. Each lane reads the sums that it wrote itself.
template <typename Rule, typename Format, int Width>
__device__ __forceinline__ void apply_row_by(const UpdateArguments& arguments,
                                             const StepScalars& scalars, const Team& team,
                                             int64_t row, const float* sums) {
  float rate = scalars.lr;
  if constexpr (Rule::kRowStates > 0) {
    const float state = row < 0 ? 0.0f : load_global(arguments.state[0] + row);
    float terms = 0;
    for (int64_t column = team.lane * Width; row >= 0 && column < arguments.dim;
         column += team.lanes * Width) {
      const auto loaded = load_row_and_state<Rule, Format, Width>(arguments, row, column);
      terms += sum_row_terms(scalars, loaded, load_columns<Width>(sums, column).values);
    }
    terms = team.sum(terms);
    __syncwarp();  // all lanes have read the state that one of them writes
    if (row >= 0) {
      rate = move_row<Rule>(arguments, scalars, team, row, state, terms);
    }
  }
  for (int64_t column = team.lane * Width; row >= 0 && column < arguments.dim;
       column += team.lanes * Width) {
    auto loaded = load_row_and_state<Rule, Format, Width>(arguments, row, column);
    apply_columns(arguments, scalars, row, column, loaded, load_columns<Width>(sums, column).values,
                  rate);
  }
}

template <typename Format, int Width>
__device__ __forceinline__ void apply_row_in(const UpdateArguments& arguments,
                                             const StepScalars& scalars, const Team& team,
                                             int64_t row, const float* sums) {
  with_rule<DeviceMath>(arguments.rule, [&](auto rule) {
    apply_row_by<decltype(rule), Format, Width>(arguments, scalars, team, row, sums);
  });
}

template <int Width>
__device__ __forceinline__ void apply_row(const UpdateArguments& arguments,
                                          const StepScalars& scalars, const Team& team, int64_t row,
                                          const float* sums) {
  if (arguments.table_dtype == Dtype::kFloat32) {
    apply_row_in<Float32Format, Width>(arguments, scalars, team, row, sums);
  } else {
    apply_row_in<BFloat16Format, Width>(arguments, scalars, team, row, sums);
  }
}

// Columns of a gradient row of any type, as float32.
template <int Width>
__device__ __forceinline__ Columns<float, Width> load_gradient(const UpdateArguments& arguments,
                                                               int64_t element) {
  Columns<float, Width> columns;
  const auto convert_from = [&](const auto* gradients) {
    const auto raw = load_columns<Width>(gradients, element);
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      columns.values[i] = convert<float>(raw.values[i]);
    }
  };
  if (arguments.gradient_dtype == Dtype::kFloat32) {
    convert_from(static_cast<const float*>(arguments.gradients));
  } else if (arguments.gradient_dtype == Dtype::kFloat16) {
    convert_from(static_cast<const float16*>(arguments.gradients));
  } else {
    convert_from(static_cast<const bfloat16*>(arguments.gradients));
  }
  return columns;
}

// Sums the gradients of sorted positions [begin, end), in order, to `target`.
template <int Width>
__device__ __forceinline__ void sum_lookups(const UpdateArguments& arguments, const Team& team,
                                            int64_t begin, int64_t end, float* target) {
  constexpr int kInFlight = 4;
  for (int64_t column = team.lane * Width; column < arguments.dim; column += team.lanes * Width) {
    Columns<float, Width> sum = {};
    for (int64_t base = begin; base < end; base += kInFlight) {
      Columns<float, Width> columns[kInFlight];
      float scales[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        columns[i] = {};
        scales[i] = 0;
        if (base + i < end) {
          const LookupGradient lookup = lookup_gradient(arguments, base + i);
          scales[i] = lookup.scale;
          columns[i] = load_gradient<Width>(
              arguments, lookup.row * static_cast<int64_t>(arguments.dim) + column);
        }
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
        for (int j = 0; j < Width; ++j) {
          sum.values[j] += scales[i] * columns[i].values[j];
        }
      }
    }
    store_columns(target, column, sum);
  }
}

// First kernel of the sorted update for any row length and alignment; one warp per chunk.
template <int Width>
__global__ void update_chunks_of_any_rows(UpdateArguments arguments, ChunkSums chunk_sums) {
  if (arguments.overflow != nullptr && load_global(arguments.overflow)) {
    return;
  }
  const Team team(kWarpLanes);
  const StepScalars scalars = step_scalars(arguments);
  const RowNumbers rows = row_numbers(arguments.rows, arguments.row_type);
  const ChunkSegments chunk = find_segments(rows, arguments.count, team);
  const int64_t offset = team.index() * arguments.dim;
  int begin = 0;
  for (int last = 0; last < chunk.size; ++last) {
    if (!chunk.ends_at(last) && last + 1 < chunk.size) {
      continue;
    }
    const int64_t row = rows[chunk.begin + last];
    if (is_row(row, arguments.num_table_rows)) {
      const bool began_before = chunk.began_before(last);
      const bool is_whole = chunk.ends_at(last) && !began_before;
      float* target = (is_whole       ? chunk_sums.scratch
                       : began_before ? chunk_sums.heads
                                      : chunk_sums.tails) +
                      offset;
      sum_lookups<Width>(arguments, team, chunk.begin + begin, chunk.begin + last + 1, target);
      if (is_whole) {
        apply_row<Width>(arguments, scalars, team, row, target);
      }
    }
    begin = last + 1;
  }
}

}  // namespace recsys::kernels
