// SPDX-License-Identifier: Apache-2.0
// The row optimizers, once for every backend; cuda_ext/row_rules.py defines them.
//
// A rule moves Math::Number weights at a time: a vector of them on the CPU, one on a device. To add
// one, write a struct like those below and name it in `UpdateRules`; row_rules.py gives it a name.
#pragma once

#include "../host_device.h"
#include "update_arguments.h"

namespace recsys {

// The scalars of an optimizer step, the same for every row.
struct StepScalars {
  float lr;
  float inverse_scale;
  float weight_decay;
  float step;
  float hyperparameters[kMaxHyperparameters];
  float one_minus[kMaxHyperparameters];  // 1 - each hyperparameter
  float derived[3];                      // a rule's own, from `prepare`

  RECSYS_HOST_DEVICE explicit StepScalars(const UpdateArguments& arguments)
      : lr(*arguments.lr),
        inverse_scale(arguments.inverse_scale == nullptr ? 1.0f : *arguments.inverse_scale),
        weight_decay(arguments.weight_decay),
        step(*arguments.step),
        derived{} {
    for (int i = 0; i < kMaxHyperparameters; ++i) {
      hyperparameters[i] = arguments.hyperparameters[i];
      one_minus[i] = arguments.one_minus_hyperparameters[i];
    }
  }
};

// Defaults of the rules.
template <typename Math>
struct RuleDefaults {
  using Number = typename Math::Number;

  static constexpr int kHyperparameters = 0;
  static constexpr int kRowStates = 0;      // float32 [R], at most one
  static constexpr int kElementStates = 0;  // float32 [R, D]

  // Computes `derived`, once per step.
  RECSYS_HOST_DEVICE static void prepare(StepScalars&) {}

  // The gradient of the loss plus that of the weight decay.
  RECSYS_HOST_DEVICE static Number decayed(const StepScalars& scalars, Number weights, Number sum) {
    return Math::multiply_add(sum, scalars.inverse_scale, weights * scalars.weight_decay);
  }
};

// A rule has `move`, which returns new weights and changes `state`:
//
//   sum    gradients of the row's lookups, added up, times the loss scale
//   state  one number per element state
//   rate   what `move_row` returned, for rules with a state per row
//
// A rule with a state per row also has `row_term`, which is first summed over the columns of the
// row, and `move_row`, which changes the row's state by the mean of the terms and returns the rate.

template <typename Math>
struct Sgd : RuleDefaults<Math> {
  using typename RuleDefaults<Math>::Number;
  static constexpr const char* kName = "sgd";

  RECSYS_HOST_DEVICE static Number move(const StepScalars& scalars, Number weights, Number sum,
                                        Number* /*state*/, float /*rate*/) {
    return weights - Sgd::decayed(scalars, weights, sum) * scalars.lr;
  }
};

template <typename Math>
struct RowwiseAdagrad : RuleDefaults<Math> {
  using typename RuleDefaults<Math>::Number;
  static constexpr const char* kName = "rowwise_adagrad";
  static constexpr int kHyperparameters = 1;  // eps
  static constexpr int kRowStates = 1;

  RECSYS_HOST_DEVICE static Number row_term(const StepScalars& scalars, Number weights,
                                            Number sum) {
    const Number gradient = RowwiseAdagrad::decayed(scalars, weights, sum);
    return gradient * gradient;
  }
  RECSYS_HOST_DEVICE static float move_row(const StepScalars& scalars, float& state, float mean) {
    state += mean;
    return scalars.lr / (Math::square_root(state) + scalars.hyperparameters[0]);
  }
  RECSYS_HOST_DEVICE static Number move(const StepScalars& scalars, Number weights, Number sum,
                                        Number* /*state*/, float rate) {
    return weights - RowwiseAdagrad::decayed(scalars, weights, sum) * rate;
  }
};

template <typename Math>
struct Adagrad : RuleDefaults<Math> {
  using typename RuleDefaults<Math>::Number;
  static constexpr const char* kName = "adagrad";
  static constexpr int kHyperparameters = 1;  // eps
  static constexpr int kElementStates = 1;

  RECSYS_HOST_DEVICE static Number move(const StepScalars& scalars, Number weights, Number sum,
                                        Number* state, float /*rate*/) {
    const Number gradient = Adagrad::decayed(scalars, weights, sum);
    state[0] = state[0] + gradient * gradient;
    return weights -
           gradient * scalars.lr / (Math::square_root(state[0]) + scalars.hyperparameters[0]);
  }
};

template <typename Math>
struct Adam : RuleDefaults<Math> {
  using typename RuleDefaults<Math>::Number;
  static constexpr const char* kName = "adam";
  static constexpr int kHyperparameters = 3;
  static constexpr int kElementStates = 2;
  enum { kBeta1, kBeta2, kEps };  // in hyperparameters
  // In derived: 1 / (1 - beta^step), and lr * weight_decay.
  enum { kFirstCorrection, kSecondCorrection, kDecay };

  RECSYS_HOST_DEVICE static void prepare(StepScalars& scalars) {
    for (int i = 0; i < 2; ++i) {
      scalars.derived[i] = Math::bias_correction(scalars.one_minus[i], scalars.step);
    }
    scalars.derived[kDecay] = scalars.lr * scalars.weight_decay;
  }
  RECSYS_HOST_DEVICE static Number move(const StepScalars& scalars, Number weights, Number sum,
                                        Number* state, float /*rate*/) {
    const Number gradient = sum * scalars.inverse_scale;
    state[0] = Math::multiply_add(state[0], scalars.hyperparameters[kBeta1],
                                  gradient * scalars.one_minus[kBeta1]);
    state[1] = Math::multiply_add(state[1], scalars.hyperparameters[kBeta2],
                                  gradient * gradient * scalars.one_minus[kBeta2]);
    const Number root = Math::square_root(state[1] * scalars.derived[kSecondCorrection]) +
                        scalars.hyperparameters[kEps];
    return weights - weights * scalars.derived[kDecay] -
           state[0] * scalars.derived[kFirstCorrection] * scalars.lr / root;
  }
};

template <template <typename> class... Each>
struct RuleList {};

// Every rule; the position in this list is its number in UpdateArguments.
using UpdateRules = RuleList<Sgd, RowwiseAdagrad, Adagrad, Adam>;

// Calls body(rule) with an object of the type of the rule with the given number; returns whether
// that rule exists.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Math, template <typename> class First, template <typename> class... Rest,
          typename Body>
RECSYS_HOST_DEVICE bool with_rule_of(RuleList<First, Rest...>, int32_t number, const Body& body) {
  if (number == 0) {
    body(First<Math>{});
    return true;
  }
  if constexpr (sizeof...(Rest) > 0) {
    return with_rule_of<Math>(RuleList<Rest...>{}, number - 1, body);
  }
  return false;
}

#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Math, typename Body>
RECSYS_HOST_DEVICE bool with_rule(int32_t number, const Body& body) {
  return with_rule_of<Math>(UpdateRules{}, number, body);
}

}  // namespace recsys
