// SPDX-License-Identifier: Apache-2.0
// The ops that another op calls, and parts of them.
#pragma once

#include <optional>
#include <vector>

#include "interaction/interaction_arguments.h"
#include "mlp/layers.h"
#include "tensor_arguments.h"

namespace recsys {

// Checks a dot interaction of looked-up rows; its output is set later.
InteractionArguments gather_arguments(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                                      bool allow_tf32, const char* op);

Tensor joint_rows(const Tensor& ids, const Tensor& offsets,
                  const std::optional<Tensor>& bag_offsets, bool hash_indices, ScalarType dtype);

// The checked layers of an MLP, with memory for their results. `sizes` must outlive it.
class PackedLayers {
 public:
  PackedLayers(const Tensor& input, const Tensor& weights, const Tensor& biases,
               const std::vector<int64_t>& sizes, bool final_relu);

  LayersArguments arguments{};
  Tensor output;

 private:
  Tensor scratch_;
};

}  // namespace recsys
