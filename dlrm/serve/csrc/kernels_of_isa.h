// SPDX-License-Identifier: Apache-2.0
// The kernels of a served DLRM, for the instruction set that includes this file.
#pragma once

#include "cuda_ext/csrc/interaction/cpu/dot_interaction.h"
#include "cuda_ext/csrc/mlp/cpu/panel_layer.h"
#include "serving_kernels.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr serve::ServingKernels serving_kernels(const char* name) {
  return {name, layer_range, interaction_forward_range};
}

}  // namespace recsys::cpu::RECSYS_ISA
