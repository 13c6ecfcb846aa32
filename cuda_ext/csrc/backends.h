// SPDX-License-Identifier: Apache-2.0
// The two implementations of every kernel. Same arguments, same results within rounding.
#pragma once

#include "op_arguments.h"

namespace recsys::cpu {

void dot_interaction(const InteractionArguments& arguments);
void dot_interaction_backward(const InteractionArguments& arguments);
void joint_rows(const JointRowsArguments& arguments);
void embedding_gather(const GatherArguments& arguments);
void embedding_bag(const BagArguments& arguments);
void embedding_bag_scale_backward(const BagScaleGradientArguments& arguments);
size_t sort_workspace_bytes(const SortArguments& arguments);
void sort_rows(const SortArguments& arguments);
size_t update_workspace_bytes(const UpdateArguments& arguments);
void update_rows(const UpdateArguments& arguments);
void sgd_rows_unsorted(const UnsortedSgdArguments& arguments);

// Returns the position of the first row outside [0, num_table_rows), or -1.
int64_t find_bad_row(const void* rows, IndexType type, int64_t count, int64_t num_table_rows);

// Returns the instruction set that the kernels run with: "avx512", "avx2" or "portable".
const char* instruction_set();

}  // namespace recsys::cpu

// Kernels for a CUDA device, or for the emulator, which runs the same sources on the CPU. Each
// returns a cudaError_t as int, 0 where the launch went well; nothing waits for the device.
// A row outside the table reads as zeros and is never written.
namespace recsys::device {

int dot_interaction(const InteractionArguments& arguments, void* stream);
int dot_interaction_backward(const InteractionArguments& arguments, void* stream);
int joint_rows(const JointRowsArguments& arguments, void* stream);
int embedding_gather(const GatherArguments& arguments, void* stream);
int embedding_bag(const BagArguments& arguments, void* stream);
int embedding_bag_scale_backward(const BagScaleGradientArguments& arguments, void* stream);
size_t sort_workspace_bytes(const SortArguments& arguments);
int sort_rows(const SortArguments& arguments, void* stream);
size_t update_workspace_bytes(const UpdateArguments& arguments);
int update_rows(const UpdateArguments& arguments, void* stream);
int sgd_rows_unsorted(const UnsortedSgdArguments& arguments, void* stream);

}  // namespace recsys::device
