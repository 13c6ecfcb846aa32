// SPDX-License-Identifier: Apache-2.0
// The rules of update/rules.h on one row of a table.
#pragma once

#include "../rules.h"
#include "formats.h"

namespace recsys::cpu::RECSYS_ISA {

// a * b + c, rounded once if the CPU can. Spelled out where two products are added: the compiler
// might fuse either of them, and bits would depend on the compiler.
inline Vector<float> multiply_add(Vector<float> a, float b, Vector<float> c) {
  const Vector<float> factors = broadcast(b);
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_fmadd_ps((__m512)a, (__m512)factors, (__m512)c);
#elif defined(__FMA__)
  return (Vector<float>)_mm256_fmadd_ps((__m256)a, (__m256)factors, (__m256)c);
#elif defined(__FP_FAST_FMAF)
  for (int lane = 0; lane < kLanes<float>; ++lane) {
    c[lane] = __builtin_fmaf(a[lane], factors[lane], c[lane]);
  }
  return c;
#else
  return a * factors + c;
#endif
}

// Arithmetic of the rules.
struct VectorMath {
  using Number = Vector<float>;

  static Number multiply_add(Number a, float b, Number c) {
    return RECSYS_ISA::multiply_add(a, b, c);
  }
  static Number square_root(Number values) { return RECSYS_ISA::square_root(values); }
  static float square_root(float value) { return __builtin_sqrtf(value); }

  // 1 / (1 - beta^step)
  static float bias_correction(double one_minus_beta, double step) {
    return static_cast<float>(-1.0 / __builtin_expm1(step * __builtin_log1p(-one_minus_beta)));
  }
};

template <typename Rule>
inline StepScalars scalars_of(const UpdateArguments& arguments) {
  StepScalars scalars(arguments);
  Rule::prepare(scalars);
  return scalars;
}

template <typename Rule>
inline void prefetch_state(const UpdateArguments& arguments, int64_t row) {
  for (int i = 0; i < Rule::kRowStates; ++i) {
    prefetch(arguments.state[i] + row, sizeof(float));
  }
  for (int i = 0; i < Rule::kElementStates; ++i) {
    prefetch(arguments.state[Rule::kRowStates + i] + row * arguments.dim,
             arguments.dim * static_cast<int64_t>(sizeof(float)));
  }
}

// Applies the summed gradients of a row to it and to its state.
template <typename Rule, typename Row>
inline void apply_rule(const UpdateArguments& arguments, const StepScalars& of_step,
                       int64_t row_number, const Row& row, const float* gradients) {
  constexpr int kStates = Rule::kElementStates;
  // A local copy stays in registers: the compiler knows that writing a row does not change it.
  const StepScalars scalars = of_step;
  float rate = scalars.lr;
  if constexpr (Rule::kRowStates > 0) {
    Vector<float> terms = {};
    for_each_columns(0, arguments.dim, [&](auto columns) {
      const Vector<float> sums = columns.read(gradients);
      terms += Rule::row_term(scalars, row.read(columns), sums);
    });
    const float mean = sum(terms) / static_cast<float>(arguments.dim);
    rate = Rule::move_row(scalars, arguments.state[0][row_number], mean);
  }
  float* stored[kStates + 1];
  for (int i = 0; i < kStates; ++i) {
    stored[i] = arguments.state[Rule::kRowStates + i] + row_number * arguments.dim;
  }
  for_each_columns(0, arguments.dim, [&](auto columns) {
    Vector<float> state[kStates + 1];
    RECSYS_UNROLL for (int i = 0; i < kStates; ++i) { state[i] = columns.read(stored[i]); }
    const Vector<float> weights = row.read(columns);
    const Vector<float> sums = columns.read(gradients);
    const Vector<float> moved = Rule::move(scalars, weights, sums, state, rate);
    RECSYS_UNROLL for (int i = 0; i < kStates; ++i) { columns.write(stored[i], state[i]); }
    row.write(columns, moved);
  });
}

}  // namespace recsys::cpu::RECSYS_ISA
