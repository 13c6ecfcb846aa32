// SPDX-License-Identifier: Apache-2.0
// The table of lookup kernels of one instruction set.
#pragma once

#include "gather.h"
#include "joint_rows.h"
#include "table.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr LookupKernels kLookupKernels = {joint_rows_range, first_bad_row_range, gather_range,
                                          bag_range, bag_scale_gradient_range};

}  // namespace recsys::cpu::RECSYS_ISA
