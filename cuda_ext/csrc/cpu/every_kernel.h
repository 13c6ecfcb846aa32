// SPDX-License-Identifier: Apache-2.0
// Every CPU kernel, for the instruction set that includes this; see vector.h.
#pragma once

#include "../attention/cpu/kernels.h"
#include "../interaction/cpu/kernels.h"
#include "../lookup/cpu/gather.h"
#include "../lookup/cpu/joint_rows.h"
#include "../mlp/cpu/kernels.h"
#include "../products/cpu/kernels.h"
#include "../search/cpu/kernels.h"
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
      update_crossing_rows_range,
      sgd_unsorted,
  };
}

}  // namespace recsys::cpu::RECSYS_ISA
