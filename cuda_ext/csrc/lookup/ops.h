// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "../tensor_arguments.h"

namespace recsys {

Tensor joint_rows(const Tensor& ids, const Tensor& offsets,
                  const std::optional<Tensor>& bag_offsets, bool hash_indices, ScalarType dtype);

}  // namespace recsys
