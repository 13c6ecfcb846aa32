// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "../tensor_arguments.h"

namespace recsys {

Tensor mlp_forward(const Tensor& input, const Tensor& weights, const Tensor& biases,
                   std::vector<int64_t> sizes, bool final_relu);

}  // namespace recsys
