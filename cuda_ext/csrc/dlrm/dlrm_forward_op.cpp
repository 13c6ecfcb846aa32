// SPDX-License-Identifier: Apache-2.0
// torch op of a whole DLRM without gradients, on the CPU: one call instead of one per part.
#include "../cpu/kernel_table.h"
#include "../cpu/parallel.h"
#include "../ops.h"
#include "../registration.h"

namespace recsys {

Tensor dlrm_forward(const Tensor& numerical, const Tensor& ids, const Tensor& offsets,
                    bool hash_indices, const Tensor& table, const Tensor& bottom_weights,
                    const Tensor& bottom_biases, std::vector<int64_t> bottom_sizes,
                    const Tensor& top_weights, const Tensor& top_biases,
                    std::vector<int64_t> top_sizes) {
  STD_TORCH_CHECK(top_sizes.empty() || top_sizes.back() == 1,
                  "dlrm_forward: the top MLP must end with 1 output, got ", top_sizes.back());
  const bool fits_32_bits = table.size(0) < (int64_t{1} << 31);
  const Tensor rows = joint_rows(ids, offsets, std::nullopt, hash_indices,
                                 fits_32_bits ? ScalarType::Int : ScalarType::Long);
  const PackedLayers bottom(numerical, bottom_weights, bottom_biases, bottom_sizes, true);
  InteractionArguments interaction =
      gather_arguments(table, rows, bottom.output, false, "dlrm_forward");
  const int64_t batch = numerical.size(0);
  const Tensor features = torch::stable::new_empty(numerical, {batch, interaction.width});
  interaction.output = features.data_ptr();
  const PackedLayers top(features, top_weights, top_biases, top_sizes, false);
  if (const int64_t samples = cpu::samples_per_task(batch)) {
    // One task runs the whole network on its samples: threads meet only at the end.
    cpu::for_each_block(batch, samples, [&](int64_t begin, int64_t end) {
      cpu::run_layers(of_samples(bottom.arguments, begin, end));
      cpu::kernels().interaction(interaction, begin, end);
      cpu::run_layers(of_samples(top.arguments, begin, end));
    });
  } else if (batch > 0) {
    cpu::run_layers_together(bottom.arguments);
    cpu::dot_interaction(interaction);
    cpu::run_layers_together(top.arguments);
  }
  return torch::stable::view(top.output, {batch});
}

}  // namespace recsys

static const recsys::Op kOps[] = {
    {"dlrm_forward(Tensor numerical, Tensor ids, Tensor offsets, bool hash_indices,"
     " Tensor table, Tensor bottom_weights, Tensor bottom_biases, int[] bottom_sizes,"
     " Tensor top_weights, Tensor top_biases, int[] top_sizes) -> Tensor",
     TORCH_BOX(&recsys::dlrm_forward)},
};

RECSYS_REGISTER_ON_CPU(kOps)
