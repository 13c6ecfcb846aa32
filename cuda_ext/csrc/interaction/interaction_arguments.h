// SPDX-License-Identifier: Apache-2.0
// Kernels of the dot interaction: their arguments, for CPU and CUDA.
//
// An op passes plain pointers and sizes, no torch tensors, and has checked every size and type.
// Tensors are contiguous except for the batch strides named here, which count elements. Both
// backends give the same results within rounding. Kernels for a device return a cudaError_t as int,
// 0 if the launch succeeded, and do not wait for the device; the emulator runs the same sources. On
// a device, a row outside the table reads as zeros and is never written.
//
// B samples of N vectors of D columns; a table of R rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../table_rows.h"

namespace recsys {

// dot_interaction and gather_dot_interaction, forward and backward.
//
// Vector 0 of a sample is `first`; vectors 1..N-1 are `rest`, or the table rows that `rows` names,
// rounded to `dtype` before they are multiplied. Output row: first | strictly lower triangle,
// row-major | zeros up to `width`.
struct InteractionArguments : TableRows<const void> {  // table: null if nothing is gathered
  Dtype dtype;  // of first, rest, output and all gradients; sums are float32
  int64_t batch;
  int32_t num_vectors;  // N, 1..64
  int32_t width;        // columns of output and gradient
  bool allow_tf32;      // float32 may be multiplied as tf32 on tensor cores

  const void* first;  // [B, D]
  int64_t first_stride;
  const void* rest;  // [B, N - 1, D], null if rows are gathered
  int64_t rest_stride;

  void* output;          // [B, width], forward
  const void* gradient;  // [B, width], backward
  void* first_gradient;  // [B, D], backward: includes the gradient of the copied columns
  int64_t first_gradient_stride;
  void* rest_gradient;  // [B, N - 1, D], backward
  int64_t rest_gradient_stride;
  bool* overflow;  // backward on a device, or null: set if rest_gradient is not finite
};

}  // namespace recsys

namespace recsys::cpu {

void dot_interaction(const InteractionArguments& arguments);
void dot_interaction_backward(const InteractionArguments& arguments);

}  // namespace recsys::cpu

namespace recsys::device {

int dot_interaction(const InteractionArguments& arguments, void* stream);
int dot_interaction_backward(const InteractionArguments& arguments, void* stream);

}  // namespace recsys::device
