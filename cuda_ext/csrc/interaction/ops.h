// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "../tensor_arguments.h"

namespace recsys {

Tensor gather_dot_interaction(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                              const std::optional<Tensor>& anchor,
                              const std::optional<Tensor>& overflow, bool allow_tf32);

}  // namespace recsys
