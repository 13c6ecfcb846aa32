// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels between the products of an MLP's backward pass.
#include "../../cuda/dispatch.cuh"
#include "relu_backward.cuh"

namespace recsys::device {

using namespace kernels;

namespace {

constexpr int kAddingThreads = 1024;

template <typename Element, typename Sum, int kWidth>
int launch_relu_backward(const ReluBackwardArguments& arguments, void* stream) {
  constexpr int kTeams = kBlockThreads / kSumLanes;
  const int64_t rows = blocks_for(arguments.num_rows, kReluBackwardRows);
  const int64_t across = blocks_for(arguments.num_columns, kSumLanes * kWidth);
  const size_t shared_bytes = sizeof(Sum) * kTeams * kSumLanes * kWidth;
  if (rows > 0) {
    const int status = launch(mask_gradient<Element, Sum, kWidth>, rows * across, kBlockThreads,
                              shared_bytes, stream, arguments);
    if (status != 0) {
      return status;
    }
  }
  return launch(add_block_sums<Sum>, blocks_for(arguments.num_columns, kSumLanes), kAddingThreads,
                sizeof(Sum) * kAddingThreads, stream, arguments);
}

template <typename Element, typename Sum>
int launch_relu_backward(const ReluBackwardArguments& arguments, void* stream) {
  constexpr int kWidth = static_cast<int>(sizeof(Vector) / sizeof(Element));
  const bool vectors = arguments.num_columns % kWidth == 0 &&
                       fits_vectors(0, 1, arguments.gradient, arguments.output, arguments.delta);
  return vectors ? launch_relu_backward<Element, Sum, kWidth>(arguments, stream)
                 : launch_relu_backward<Element, Sum, 1>(arguments, stream);
}

}  // namespace

int relu_backward(const ReluBackwardArguments& arguments, void* stream) {
  if (arguments.num_columns == 0) {
    return 0;
  }
  if (arguments.dtype == Dtype::kFloat64) {
    return launch_relu_backward<double, double>(arguments, stream);
  }
  return with_float_type(arguments.dtype, [&](auto type) {
    return launch_relu_backward<typename decltype(type)::type, float>(arguments, stream);
  });
}

}  // namespace recsys::device
