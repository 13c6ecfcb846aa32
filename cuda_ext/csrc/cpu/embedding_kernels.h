// SPDX-License-Identifier: Apache-2.0
// The table of embedding kernels of one instruction set.
#pragma once

#include "embedding_kernels_table.h"
#include "embedding_lookup.h"
#include "embedding_rows.h"
#include "embedding_unsorted_sgd.h"
#include "embedding_update.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr EmbeddingKernels kEmbeddingKernels = {
    joint_rows_range,         first_bad_row_range, gather_range, bag_range,
    bag_scale_gradient_range, update_chunks_range, sgd_unsorted, update_crossing_rows_range};

}  // namespace recsys::cpu::RECSYS_ISA
