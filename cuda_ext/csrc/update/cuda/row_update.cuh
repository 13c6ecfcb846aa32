// SPDX-License-Identifier: Apache-2.0
// Updates of a row: storage formats of tables, and the update rules on them.
#pragma once

#include "../../cuda/row_vectors.cuh"
#include "../rules.h"
#include "../stochastic_rounding.h"

namespace recsys::kernels {

// Arithmetic of the rules.
struct DeviceMath {
  using Number = float;

  __host__ __device__ __forceinline__ static float multiply_add(float a, float b, float c) {
    return fmaf(a, b, c);
  }
  __host__ __device__ __forceinline__ static float square_root(float value) { return sqrtf(value); }

  // 1 / (1 - beta^step): 1 - beta^step itself would lose most of its digits in the first steps.
  __host__ __device__ __forceinline__ static float bias_correction(float one_minus_beta,
                                                                   float step) {
    return -1.0f / expm1f(step * log1pf(-one_minus_beta));
  }
};

// The scalars of a step, for a rule that is known at run time.
__device__ __forceinline__ StepScalars step_scalars(const UpdateArguments& arguments) {
  StepScalars scalars(arguments);
  with_rule<DeviceMath>(arguments.rule, [&](auto rule) { rule.prepare(scalars); });
  return scalars;
}

// The formats: each loads the stored bits of columns, so that many loads can be in flight before
// the first is converted to float32, and converts results back.
struct Float32Format {
  template <int Width>
  using Raw = Columns<float, Width>;

  template <int Width>
  __device__ __forceinline__ static Raw<Width> load(const UpdateArguments& arguments,
                                                    int64_t element) {
    return load_columns<Width>(static_cast<const float*>(arguments.table), element);
  }
  template <int Width>
  __device__ __forceinline__ static float join(const Raw<Width>& columns, int i) {
    return columns.values[i];
  }
  template <int Width>
  __device__ __forceinline__ static void store(const UpdateArguments& arguments, const StepScalars&,
                                               int64_t row, int64_t column,
                                               const Columns<float, Width>& weights) {
    store_columns(static_cast<float*>(arguments.table), row * arguments.dim + column, weights);
  }
};

struct BFloat16Format {
  template <int Width>
  using Raw = RawColumns<uint16_t, Width>;

  template <int Width>
  __device__ __forceinline__ static Raw<Width> load(const UpdateArguments& arguments,
                                                    int64_t element) {
    return load_raw_columns<Width>(static_cast<const uint16_t*>(arguments.table), element);
  }
  template <int Width>
  __device__ __forceinline__ static float join(const Raw<Width>& columns, int i) {
    return __uint_as_float(static_cast<uint32_t>(columns[i]) << 16);
  }
  template <int Width>
  __device__ __forceinline__ static void store(const UpdateArguments& arguments,
                                               const StepScalars& scalars, int64_t row,
                                               int64_t column,
                                               const Columns<float, Width>& weights) {
    const uint32_t key =
        rounding_key(arguments.rounding_seed, static_cast<uint32_t>(scalars.step), row);
    Columns<uint16_t, Width> rounded;
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      rounded.values[i] = round_stochastically(__float_as_uint(weights.values[i]),
                                               column_bits(key, static_cast<uint32_t>(column) + i));
    }
    store_columns(static_cast<uint16_t*>(arguments.table), row * arguments.dim + column, rounded);
  }
};

// Columns of a row and of its state, as loaded.
template <typename Rule, typename Format, int Width>
struct LoadedColumns {
  static constexpr int kStates = Rule::kElementStates;
  typename Format::template Raw<Width> weights;
  Columns<float, Width> state[kStates > 0 ? kStates : 1];
};

template <typename Rule, typename Format, int Width>
__device__ __forceinline__ LoadedColumns<Rule, Format, Width> load_row_and_state(
    const UpdateArguments& arguments, int64_t row, int64_t column) {
  const int64_t element = row * arguments.dim + column;
  LoadedColumns<Rule, Format, Width> loaded;
  loaded.weights = Format::template load<Width>(arguments, element);
#pragma unroll
  for (int i = 0; i < Rule::kElementStates; ++i) {
    loaded.state[i] = load_columns<Width>(arguments.state[Rule::kRowStates + i], element);
  }
  return loaded;
}

// Sum of the row terms of some columns; rules with a state per row first need the sum over the
// whole row.
template <typename Rule, typename Format, int Width>
__device__ __forceinline__ float sum_row_terms(const StepScalars& scalars,
                                               const LoadedColumns<Rule, Format, Width>& loaded,
                                               const float (&sums)[Width]) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    const float weight = Format::template join<Width>(loaded.weights, i);
    total += Rule::row_term(scalars, weight, sums[i]);
  }
  return total;
}

// Moves a row's state by its row terms, by one lane; returns the row's rate. All lanes must have
// read `state` before.
template <typename Rule>
__device__ __forceinline__ float move_row(const UpdateArguments& arguments,
                                          const StepScalars& scalars, const Team& team, int64_t row,
                                          float state, float terms) {
  const float rate = Rule::move_row(scalars, state, terms / static_cast<float>(arguments.dim));
  if (team.lane == 0) {
    store_global(arguments.state[0] + row, state);
  }
  return rate;
}

// Applies the summed gradient of some columns of a row, at the row's rate.
template <typename Rule, typename Format, int Width>
__device__ __forceinline__ void apply_columns(const UpdateArguments& arguments,
                                              const StepScalars& scalars, int64_t row,
                                              int64_t column,
                                              LoadedColumns<Rule, Format, Width>& loaded,
                                              const float (&sums)[Width], float rate) {
  constexpr int kStates = Rule::kElementStates;
  Columns<float, Width> weights;
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    float state[kStates > 0 ? kStates : 1];
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      state[s] = loaded.state[s].values[i];
    }
    const float weight = Format::template join<Width>(loaded.weights, i);
    weights.values[i] = Rule::move(scalars, weight, sums[i], state, rate);
#pragma unroll
    for (int s = 0; s < kStates; ++s) {
      loaded.state[s].values[i] = state[s];
    }
  }
  Format::store(arguments, scalars, row, column, weights);
#pragma unroll
  for (int s = 0; s < kStates; ++s) {
    store_columns(arguments.state[Rule::kRowStates + s], row * arguments.dim + column,
                  loaded.state[s]);
  }
}

}  // namespace recsys::kernels
