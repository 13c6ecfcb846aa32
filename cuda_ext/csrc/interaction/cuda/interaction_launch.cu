// SPDX-License-Identifier: Apache-2.0
// Launches of the dot interaction: tensor cores where sizes, types and alignment fit them.
#include <algorithm>

#include "../../cuda/launch.cuh"
#include "any_size.cuh"
#include "backward.cuh"
#include "forward.cuh"

namespace recsys::device {

using namespace kernels;

namespace {

// Whether an array, null allowed, can be read 16 bytes at a time if samples are `stride` elements
// apart.
bool is_aligned(const void* data, int64_t stride, Dtype dtype) {
  return data == nullptr || (reinterpret_cast<uintptr_t>(data) % sizeof(Vector) == 0 &&
                             stride * bytes_of(dtype) % sizeof(Vector) == 0);
}

bool fits_tensor_cores(const InteractionArguments& arguments) {
  const Dtype dtype = arguments.dtype;
  const bool is_half = dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16;
  const Dtype stored = arguments.rows == nullptr ? dtype : arguments.table_dtype;
  return (is_half || (dtype == Dtype::kFloat32 && arguments.allow_tf32)) &&
         (stored == dtype || stored == Dtype::kFloat32) &&
         arguments.dim * bytes_of(dtype) % sizeof(Vector) == 0 &&
         is_aligned(arguments.first, arguments.first_stride, dtype) &&
         is_aligned(arguments.rest, arguments.rest_stride, dtype) &&
         is_aligned(arguments.table, 0, stored) &&
         is_aligned(arguments.output, arguments.width, dtype) &&
         is_aligned(arguments.gradient, arguments.width, dtype) &&
         is_aligned(arguments.first_gradient, arguments.first_gradient_stride, dtype) &&
         is_aligned(arguments.rest_gradient, arguments.rest_gradient_stride, dtype);
}

// As many blocks as the device runs at once: each then takes sample after sample.
template <typename Kernel>
int64_t blocks_for(Kernel kernel, int64_t batch, int samples_per_block, int threads,
                   size_t shared_bytes) {
  return std::min((batch + samples_per_block - 1) / samples_per_block,
                  resident_blocks(kernel, threads, shared_bytes));
}

template <typename Element, typename Table, int kBlocks>
int launch_tensor_cores(const InteractionArguments& arguments, bool backward, void* stream) {
  constexpr int kThreads = kBlockWarps * kWarpSize;
  const auto kernel = backward ? interact_vectors_backward<Element, Table, kBlocks>
                               : interact_vectors<Element, Table, kBlocks>;
  const int64_t numbers =
      backward ? gradient_numbers<Element>(arguments.width) : int64_t{arguments.width};
  const size_t shared_bytes = kBlockWarps * numbers * sizeof(Element);
  const int64_t blocks = blocks_for(kernel, arguments.batch, kBlockWarps, kThreads, shared_bytes);
  return launch(kernel, blocks, kThreads, shared_bytes, stream, arguments);
}

template <typename Element, typename Table>
int launch_blocks(const InteractionArguments& arguments, bool backward, void* stream) {
  return arguments.num_vectors <= 32
             ? launch_tensor_cores<Element, Table, 2>(arguments, backward, stream)
             : launch_tensor_cores<Element, Table, 4>(arguments, backward, stream);
}

template <typename Element>
int launch_table(const InteractionArguments& arguments, bool backward, void* stream) {
  const bool is_wider = arguments.rows != nullptr && arguments.table_dtype != arguments.dtype;
  return is_wider ? launch_blocks<Element, float>(arguments, backward, stream)
                  : launch_blocks<Element, Element>(arguments, backward, stream);
}

int launch_any_size(const InteractionArguments& arguments, bool backward, void* stream) {
  const int threads = backward ? kBackwardThreads : forward_threads(arguments.num_vectors);
  const size_t shared_bytes =
      sizeof(float) * (backward ? backward_shared_numbers(arguments.num_vectors)
                                : forward_shared_numbers(arguments.num_vectors));
  const auto kernel =
      backward ? interact_vectors_of_any_size_backward : interact_vectors_of_any_size;
  const int64_t blocks = blocks_for(kernel, arguments.batch, 1, threads, shared_bytes);
  return launch(kernel, blocks, threads, shared_bytes, stream, arguments);
}

int interact(const InteractionArguments& arguments, bool backward, void* stream) {
  if (arguments.batch == 0) {
    return 0;
  }
  if (!fits_tensor_cores(arguments)) {
    return launch_any_size(arguments, backward, stream);
  }
  switch (arguments.dtype) {
    case Dtype::kFloat16:
      return launch_table<float16>(arguments, backward, stream);
    case Dtype::kBFloat16:
      return launch_table<bfloat16>(arguments, backward, stream);
    default:
      return launch_blocks<float, float>(arguments, backward, stream);
  }
}

}  // namespace

int dot_interaction(const InteractionArguments& arguments, void* stream) {
  return interact(arguments, false, stream);
}

int dot_interaction_backward(const InteractionArguments& arguments, void* stream) {
  return interact(arguments, true, stream);
}

}  // namespace recsys::device
