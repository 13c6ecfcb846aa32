// SPDX-License-Identifier: Apache-2.0
// Every CPU kernel, for the instruction set that includes this; see vector.h.
#pragma once

#include "../attention/cpu/head_attention.h"
#include "../interaction/cpu/dot_interaction.h"
#include "../lookup/cpu/gather.h"
#include "../lookup/cpu/joint_rows.h"
#include "../mlp/cpu/panel_layer.h"
#include "../mlp/cpu/relu_backward.h"
#include "../products/cpu/transposed_product.h"
#include "../search/cpu/code_scan.h"
#include "../update/cpu/chunks.h"
#include "../update/cpu/unsorted_sgd.h"
#include "kernel_table.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr KernelTable kernel_table(const char* name) {
  return {
      name,
      attention_scratch_bytes,
      attention_forward_of,
      attention_backward_of,
      interaction_forward_range,
      interaction_backward_range,
      joint_rows_range,
      first_bad_row_range,
      gather_range,
      bag_range,
      layer_range,
      relu_backward_rows,
      transposed_product,
      pack_digits,
      scan,
      update_chunks_range,
      update_long_rows_range,
      sgd_unsorted,
  };
}

}  // namespace recsys::cpu::RECSYS_ISA
