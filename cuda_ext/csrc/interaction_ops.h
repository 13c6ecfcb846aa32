// SPDX-License-Identifier: Apache-2.0
// torch ops of the dot interaction; schemas stand in registration.cpp, meanings in reference.py.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

namespace recsys {

using torch::stable::Tensor;

Tensor dot_interaction(const Tensor& features, const std::optional<Tensor>& bottom,
                       bool self_interaction, bool allow_tf32);

// Returns the gradients of features and of bottom (empty where there is no bottom).
std::tuple<Tensor, Tensor> dot_interaction_backward(const Tensor& gradient, const Tensor& features,
                                                    const std::optional<Tensor>& bottom,
                                                    bool self_interaction, bool allow_tf32);

// `anchor` is there for autograd alone.
Tensor gather_dot_interaction(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                              const std::optional<Tensor>& anchor, bool self_interaction,
                              bool allow_tf32);

// Returns the gradients of the looked-up rows [B, F, D] and of bottom.
std::tuple<Tensor, Tensor> gather_dot_interaction_backward(const Tensor& gradient,
                                                           const Tensor& table, const Tensor& rows,
                                                           const Tensor& bottom,
                                                           bool self_interaction, bool allow_tf32);

}  // namespace recsys
