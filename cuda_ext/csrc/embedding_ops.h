// SPDX-License-Identifier: Apache-2.0
// torch ops of the fused embedding; schemas stand in registration.cpp, meanings in reference.py.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace recsys {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws at a bad id, for which it waits for a device.
Tensor joint_rows(const Tensor& ids, const Tensor& offsets,
                  const std::optional<Tensor>& bag_offsets, bool hash_indices, ScalarType dtype);

// Lowers `bad` (int64 [1]) to the position of the first bad id and waits for nothing.
Tensor joint_rows_reporting(const Tensor& ids, const Tensor& offsets,
                            const std::optional<Tensor>& bag_offsets, const Tensor& bad,
                            bool hash_indices, ScalarType dtype);

Tensor embedding_gather(const Tensor& table, const Tensor& rows,
                        const std::optional<Tensor>& anchor, ScalarType dtype);

Tensor embedding_bag(const Tensor& table, const Tensor& rows, const Tensor& bag_offsets,
                     const std::optional<Tensor>& scale, const std::optional<Tensor>& anchor,
                     ScalarType dtype);

Tensor embedding_bag_scale_backward(const Tensor& gradient, const Tensor& table, const Tensor& rows,
                                    const Tensor& source);

// Returns the rows in ascending order and the position that each came from.
std::tuple<Tensor, Tensor> sort_rows(const Tensor& rows, int64_t num_table_rows);

void update_rows(const Tensor& table, const std::optional<Tensor>& table_low,
                 const std::vector<Tensor>& state, const Tensor& sorted_rows,
                 const Tensor& positions, const Tensor& gradients,
                 const std::optional<Tensor>& source, const std::optional<Tensor>& scale,
                 const Tensor& lr, const Tensor& step, const std::optional<Tensor>& inverse_scale,
                 const std::optional<Tensor>& overflow, const std::string& rule,
                 double weight_decay, const std::vector<double>& hyperparameters,
                 int64_t rounding_seed);

void sgd_rows_unsorted(const Tensor& table, const Tensor& rows, const Tensor& gradients,
                       const std::optional<Tensor>& source, const std::optional<Tensor>& scale,
                       const Tensor& lr, const std::optional<Tensor>& inverse_scale,
                       const std::optional<Tensor>& overflow);

}  // namespace recsys
