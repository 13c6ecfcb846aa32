// SPDX-License-Identifier: Apache-2.0
// The table of update kernels of one instruction set.
#pragma once

#include "chunks.h"
#include "table.h"
#include "unsorted_sgd.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr UpdateKernels kUpdateKernels = {update_chunks_range, sgd_unsorted,
                                          update_crossing_rows_range};

}  // namespace recsys::cpu::RECSYS_ISA
