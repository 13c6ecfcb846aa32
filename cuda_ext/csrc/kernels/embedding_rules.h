// SPDX-License-Identifier: Apache-2.0
// How a row changes: storage formats of tables, and update rules. reference.py defines the rules.
#pragma once

#include "../stochastic_rounding.h"
#include "embedding_vector.h"

namespace recsys::kernels {

// What all rows of a step share.
struct StepScalars {
  float lr;
  float inverse_scale;
  float first_correction;   // 1 - beta1^step, of Adam
  float second_correction;  // 1 - beta2^step
  uint32_t step;
};

RECSYS_DEVICE StepScalars step_scalars(const UpdateArguments& arguments) {
  const float step = *arguments.step;
  StepScalars scalars{};
  scalars.lr = *arguments.lr;
  scalars.inverse_scale = arguments.inverse_scale == nullptr ? 1.0f : *arguments.inverse_scale;
  scalars.step = static_cast<uint32_t>(step);
  if (arguments.rule == UpdateRule::kAdam) {
    // 1 - beta^step would lose most of its digits in the first steps.
    scalars.first_correction = -expm1f(step * log1pf(-arguments.one_minus_beta1));
    scalars.second_correction = -expm1f(step * log1pf(-arguments.one_minus_beta2));
  }
  return scalars;
}

// The formats: each loads raw parts of a row, so that many loads can be under way before the first
// is joined to float32, and splits them again.
struct Float32Format {
  template <int Width>
  using Part = RowPart<float, Width>;

  template <int Width>
  RECSYS_DEVICE static Part<Width> load(const UpdateArguments& arguments, int64_t element) {
    return load_part<Width>(static_cast<const float*>(arguments.table), element);
  }
  template <int Width>
  RECSYS_DEVICE static float join(const Part<Width>& part, int i) {
    return part.values[i];
  }
  template <int Width>
  RECSYS_DEVICE static void store(const UpdateArguments& arguments, const StepScalars&, int64_t row,
                                  int64_t column, const RowPart<float, Width>& weights) {
    store_part(static_cast<float*>(arguments.table), row * arguments.dim + column, weights);
  }
};

struct BFloat16Format {
  template <int Width>
  using Part = RowPart<uint16_t, Width>;

  template <int Width>
  RECSYS_DEVICE static Part<Width> load(const UpdateArguments& arguments, int64_t element) {
    return load_part<Width>(static_cast<const uint16_t*>(arguments.table), element);
  }
  template <int Width>
  RECSYS_DEVICE static float join(const Part<Width>& part, int i) {
    return float_of_bits(static_cast<uint32_t>(part.values[i]) << 16);
  }
  template <int Width>
  RECSYS_DEVICE static void store(const UpdateArguments& arguments, const StepScalars& scalars,
                                  int64_t row, int64_t column,
                                  const RowPart<float, Width>& weights) {
    const uint32_t key = rounding_key(arguments.rounding_seed, scalars.step, row);
    Part<Width> rounded;
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      rounded.values[i] = round_stochastically(bits_of_float(weights.values[i]),
                                               column_bits(key, static_cast<uint32_t>(column) + i));
    }
    store_part(static_cast<uint16_t*>(arguments.table), row * arguments.dim + column, rounded);
  }
};

// float32 in two planes, joined and split without loss: bits = (high << 16) + low.
struct SplitFormat {
  template <int Width>
  struct Part {
    RowPart<uint16_t, Width> high;
    RowPart<int16_t, Width> low;
  };

  template <int Width>
  RECSYS_DEVICE static Part<Width> load(const UpdateArguments& arguments, int64_t element) {
    return {load_part<Width>(static_cast<const uint16_t*>(arguments.table), element),
            load_part<Width>(static_cast<const int16_t*>(arguments.table_low), element)};
  }
  template <int Width>
  RECSYS_DEVICE static float join(const Part<Width>& part, int i) {
    return float_of_bits((static_cast<uint32_t>(part.high.values[i]) << 16) +
                         static_cast<uint32_t>(static_cast<int32_t>(part.low.values[i])));
  }
  template <int Width>
  RECSYS_DEVICE static void store(const UpdateArguments& arguments, const StepScalars&, int64_t row,
                                  int64_t column, const RowPart<float, Width>& weights) {
    Part<Width> part;
#pragma unroll
    for (int i = 0; i < Width; ++i) {
      const uint32_t bits = bits_of_float(weights.values[i]);
      const uint32_t high = (bits + 0x8000u) >> 16;
      part.high.values[i] = static_cast<uint16_t>(high);
      part.low.values[i] = static_cast<int16_t>(static_cast<uint16_t>(bits - (high << 16)));
    }
    const int64_t element = row * arguments.dim + column;
    store_part(static_cast<uint16_t*>(arguments.table), element, part.high);
    store_part(arguments.table_low, element, part.low);
  }
};

// The state that a rule keeps beside each element of a part.
template <UpdateRule rule, int Width>
struct RuleState {};
template <int Width>
struct RuleState<UpdateRule::kAdagrad, Width> {
  RowPart<float, Width> total;
};
template <int Width>
struct RuleState<UpdateRule::kAdam, Width> {
  RowPart<float, Width> first;
  RowPart<float, Width> second;
};

// A part of a row and of its state, as loaded.
template <UpdateRule rule, typename Format, int Width>
struct LoadedPart {
  typename Format::template Part<Width> weights;
  RuleState<rule, Width> state;
};

template <UpdateRule rule, typename Format, int Width>
RECSYS_DEVICE LoadedPart<rule, Format, Width> load_row_and_state(const UpdateArguments& arguments,
                                                                 int64_t row, int64_t column) {
  const int64_t element = row * arguments.dim + column;
  LoadedPart<rule, Format, Width> loaded;
  loaded.weights = Format::template load<Width>(arguments, element);
  if constexpr (rule == UpdateRule::kAdagrad) {
    loaded.state.total = load_part<Width>(arguments.first_state, element);
  } else if constexpr (rule == UpdateRule::kAdam) {
    loaded.state.first = load_part<Width>(arguments.first_state, element);
    loaded.state.second = load_part<Width>(arguments.second_state, element);
  }
  return loaded;
}

// The gradient that the rule sees: unscaled, with the coupled weight decay.
template <UpdateRule rule, typename Format, int Width>
RECSYS_DEVICE float rule_gradient(const UpdateArguments& arguments, const StepScalars& scalars,
                                  const LoadedPart<rule, Format, Width>& loaded, float sum, int i) {
  const float gradient = sum * scalars.inverse_scale;
  if constexpr (rule == UpdateRule::kAdam) {
    return gradient;
  }
  return gradient + arguments.weight_decay * Format::template join<Width>(loaded.weights, i);
}

// Sum over a part of the squared gradient, which row-wise Adagrad needs of the whole row first.
template <UpdateRule rule, typename Format, int Width>
RECSYS_DEVICE float sum_of_squares(const UpdateArguments& arguments, const StepScalars& scalars,
                                   const LoadedPart<rule, Format, Width>& loaded,
                                   const float (&sums)[Width]) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    const float gradient = rule_gradient(arguments, scalars, loaded, sums[i], i);
    squares += gradient * gradient;
  }
  return squares;
}

// Adds the squares of a row's gradient to its state, by one lane; returns the row's rate. All lanes
// must have read `total` before.
RECSYS_DEVICE float update_row_total(const UpdateArguments& arguments, const StepScalars& scalars,
                                     const Team& team, int64_t row, float total, float squares) {
  total += squares / static_cast<float>(arguments.dim);
  if (team.lane == 0) {
    arguments.first_state[row] = total;
  }
  return scalars.lr / (sqrtf(total) + arguments.eps);
}

// Applies the summed gradient of a part of a row, at `rate` where the rule has no state per
// element.
template <UpdateRule rule, typename Format, int Width>
RECSYS_DEVICE void apply_part(const UpdateArguments& arguments, const StepScalars& scalars,
                              int64_t row, int64_t column, LoadedPart<rule, Format, Width>& loaded,
                              const float (&sums)[Width], float rate) {
  const int64_t element = row * arguments.dim + column;
  RowPart<float, Width> weights;
#pragma unroll
  for (int i = 0; i < Width; ++i) {
    const float weight = Format::template join<Width>(loaded.weights, i);
    const float gradient = rule_gradient(arguments, scalars, loaded, sums[i], i);
    float change;
    if constexpr (rule == UpdateRule::kAdagrad) {
      float& total = loaded.state.total.values[i];
      total += gradient * gradient;
      change = scalars.lr * gradient / (sqrtf(total) + arguments.eps);
    } else if constexpr (rule == UpdateRule::kAdam) {
      float& first = loaded.state.first.values[i];
      float& second = loaded.state.second.values[i];
      first = arguments.beta1 * first + arguments.one_minus_beta1 * gradient;
      second = arguments.beta2 * second + arguments.one_minus_beta2 * (gradient * gradient);
      const float root = sqrtf(second / scalars.second_correction) + arguments.eps;
      change =
          scalars.lr * (first / scalars.first_correction / root + arguments.weight_decay * weight);
    } else {
      change = rate * gradient;
    }
    weights.values[i] = weight - change;
  }
  Format::store(arguments, scalars, row, column, weights);
  if constexpr (rule == UpdateRule::kAdagrad) {
    store_part(arguments.first_state, element, loaded.state.total);
  } else if constexpr (rule == UpdateRule::kAdam) {
    store_part(arguments.first_state, element, loaded.state.first);
    store_part(arguments.second_state, element, loaded.state.second);
  }
}

}  // namespace recsys::kernels
