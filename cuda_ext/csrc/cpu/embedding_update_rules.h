// SPDX-License-Identifier: Apache-2.0
// The optimizer rules on one row of a table; reference.py defines them.
#pragma once

#include "embedding_row_formats.h"

namespace recsys::cpu::RECSYS_ISA {

// a * b + c, rounded once where the CPU can. Spelled out where two products meet: there the
// compiler may fuse either, and planar and float32 tables would differ in the last bit.
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

struct RuleScalars {
  float lr;
  float inverse_scale;
  float weight_decay;
  float eps;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float first_correction = 1.0f;   // 1 / (1 - beta1^step)
  float second_correction = 1.0f;  // 1 / (1 - beta2^step)

  explicit RuleScalars(const UpdateArguments& arguments)
      : lr(*arguments.lr),
        inverse_scale(arguments.inverse_scale == nullptr ? 1.0f : *arguments.inverse_scale),
        weight_decay(arguments.weight_decay),
        eps(arguments.eps),
        beta1(arguments.beta1),
        beta2(arguments.beta2),
        one_minus_beta1(arguments.one_minus_beta1),
        one_minus_beta2(arguments.one_minus_beta2) {
    if (arguments.rule == UpdateRule::kAdam) {
      const double step = *arguments.step;
      first_correction = bias_correction(one_minus_beta1, step);
      second_correction = bias_correction(one_minus_beta2, step);
    }
  }

  // 1 / (1 - beta^step)
  static float bias_correction(double one_minus_beta, double step) {
    return static_cast<float>(-1.0 / __builtin_expm1(step * __builtin_log1p(-one_minus_beta)));
  }

  // The gradient of the loss plus that of the weight decay.
  Vector<float> decayed(Vector<float> sums, Vector<float> weights) const {
    return multiply_add(sums, inverse_scale, weights * weight_decay);
  }
};

template <UpdateRule kRule>
struct Rule;

template <>
struct Rule<UpdateRule::kSgd> {
  static void prefetch_state(const UpdateArguments&, int64_t) {}

  template <typename Row>
  static void apply(const UpdateArguments& arguments, const RuleScalars& scalars, int64_t,
                    const Row& row, const float* gradients) {
    for_each_columns<kLanes<float>>(0, arguments.dim, [&](auto columns) {
      const Vector<float> weights = row.read(columns);
      const Vector<float> gradient = scalars.decayed(columns.read(gradients), weights);
      row.write(columns, weights - gradient * scalars.lr);
    });
  }
};

template <>
struct Rule<UpdateRule::kRowwiseAdagrad> {
  static void prefetch_state(const UpdateArguments& arguments, int64_t row) {
    prefetch(arguments.first_state + row, sizeof(float));
  }

  template <typename Row>
  static void apply(const UpdateArguments& arguments, const RuleScalars& scalars,
                    int64_t row_number, const Row& row, const float* gradients) {
    Vector<float> squares = {};
    for_each_columns<kLanes<float>>(0, arguments.dim, [&](auto columns) {
      const Vector<float> gradient = scalars.decayed(columns.read(gradients), row.read(columns));
      squares += gradient * gradient;
    });
    float& state = arguments.first_state[row_number];
    state += sum(squares) / static_cast<float>(arguments.dim);
    const float multiplier = scalars.lr / (__builtin_sqrtf(state) + scalars.eps);
    for_each_columns<kLanes<float>>(0, arguments.dim, [&](auto columns) {
      const Vector<float> weights = row.read(columns);
      const Vector<float> gradient = scalars.decayed(columns.read(gradients), weights);
      row.write(columns, weights - gradient * multiplier);
    });
  }
};

template <>
struct Rule<UpdateRule::kAdagrad> {
  static void prefetch_state(const UpdateArguments& arguments, int64_t row) {
    prefetch(arguments.first_state + row * arguments.dim,
             arguments.dim * static_cast<int64_t>(sizeof(float)));
  }

  template <typename Row>
  static void apply(const UpdateArguments& arguments, const RuleScalars& scalars,
                    int64_t row_number, const Row& row, const float* gradients) {
    float* state = arguments.first_state + row_number * arguments.dim;
    for_each_columns<kLanes<float>>(0, arguments.dim, [&](auto columns) {
      const Vector<float> weights = row.read(columns);
      const Vector<float> gradient = scalars.decayed(columns.read(gradients), weights);
      const Vector<float> squares = columns.read(state) + gradient * gradient;
      columns.write(state, squares);
      row.write(columns, weights - gradient * scalars.lr / (square_root(squares) + scalars.eps));
    });
  }
};

template <>
struct Rule<UpdateRule::kAdam> {
  static void prefetch_state(const UpdateArguments& arguments, int64_t row) {
    const int64_t bytes = arguments.dim * static_cast<int64_t>(sizeof(float));
    prefetch(arguments.first_state + row * arguments.dim, bytes);
    prefetch(arguments.second_state + row * arguments.dim, bytes);
  }

  template <typename Row>
  static void apply(const UpdateArguments& arguments, const RuleScalars& scalars,
                    int64_t row_number, const Row& row, const float* gradients) {
    float* first_moments = arguments.first_state + row_number * arguments.dim;
    float* second_moments = arguments.second_state + row_number * arguments.dim;
    const float decay = scalars.lr * scalars.weight_decay;
    for_each_columns<kLanes<float>>(0, arguments.dim, [&](auto columns) {
      const Vector<float> gradient = columns.read(gradients) * scalars.inverse_scale;
      const Vector<float> first = multiply_add(columns.read(first_moments), scalars.beta1,
                                               gradient * scalars.one_minus_beta1);
      const Vector<float> second = multiply_add(columns.read(second_moments), scalars.beta2,
                                                gradient * gradient * scalars.one_minus_beta2);
      columns.write(first_moments, first);
      columns.write(second_moments, second);
      const Vector<float> root = square_root(second * scalars.second_correction) + scalars.eps;
      const Vector<float> weights = row.read(columns);
      row.write(columns,
                weights - weights * decay - first * scalars.first_correction * scalars.lr / root);
    });
  }
};

}  // namespace recsys::cpu::RECSYS_ISA
