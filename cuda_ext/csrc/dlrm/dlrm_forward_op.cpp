// SPDX-License-Identifier: Apache-2.0
// torch op of a whole DLRM on few samples, on the CPU: one call instead of one per part.
#include "../ops.h"
#include "../registration.h"

namespace recsys {

Tensor dlrm_forward(const Tensor& numerical, const Tensor& ids, const Tensor& offsets,
                    bool hash_indices, const Tensor& table, const Tensor& bottom_weights,
                    const Tensor& bottom_biases, std::vector<int64_t> bottom_sizes,
                    const Tensor& top_weights, const Tensor& top_biases,
                    std::vector<int64_t> top_sizes) {
  const bool fits_32_bits = table.size(0) < (int64_t{1} << 31);
  const Tensor rows = joint_rows(ids, offsets, std::nullopt, hash_indices,
                                 fits_32_bits ? ScalarType::Int : ScalarType::Long);
  const Tensor bottom = mlp_forward(numerical, bottom_weights, bottom_biases, bottom_sizes, true);
  const Tensor features =
      gather_dot_interaction(table, rows, bottom, std::nullopt, std::nullopt, false);
  return mlp_forward(features, top_weights, top_biases, top_sizes, false);
}

}  // namespace recsys

static const recsys::Op kOps[] = {
    {"dlrm_forward(Tensor numerical, Tensor ids, Tensor offsets, bool hash_indices,"
     " Tensor table, Tensor bottom_weights, Tensor bottom_biases, int[] bottom_sizes,"
     " Tensor top_weights, Tensor top_biases, int[] top_sizes) -> Tensor",
     TORCH_BOX(&recsys::dlrm_forward)},
};

RECSYS_REGISTER_ON_CPU(kOps)
