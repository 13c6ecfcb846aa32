// SPDX-License-Identifier: Apache-2.0
// The ops that another op calls.
#pragma once

#include <optional>
#include <vector>

#include "tensor_arguments.h"

namespace recsys {

Tensor gather_dot_interaction(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                              const std::optional<Tensor>& anchor,
                              const std::optional<Tensor>& overflow, bool allow_tf32);

Tensor joint_rows(const Tensor& ids, const Tensor& offsets,
                  const std::optional<Tensor>& bag_offsets, bool hash_indices, ScalarType dtype);

Tensor mlp_forward(const Tensor& input, const Tensor& weights, const Tensor& biases,
                   std::vector<int64_t> sizes, bool final_relu);

}  // namespace recsys
