// SPDX-License-Identifier: Apache-2.0
// Launches of what an MLP does besides large products.
#include "../../cuda/dispatch.cuh"
#include "cross_entropy.cuh"
#include "output_layer.cuh"
#include "relu_backward.cuh"

namespace recsys::device {

using namespace kernels;

namespace {

constexpr int kAddingThreads = 1024;
constexpr int kTeams = kBlockThreads / kSumLanes;

template <typename Sum>
int launch_adding(const BlockSums& arguments, void* stream) {
  return launch(add_block_sums<Sum>, blocks_for(arguments.num_columns, kSumLanes), kAddingThreads,
                sizeof(Sum) * kAddingThreads, stream, arguments);
}

template <typename Element, typename Sum, int kWidth>
int launch_relu_backward(const ReluBackwardArguments& arguments, void* stream) {
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
  return launch_adding<Sum>({arguments.block_sums, arguments.sums, rows, arguments.num_columns},
                            stream);
}

template <typename Element, typename Sum>
int launch_relu_backward(const ReluBackwardArguments& arguments, void* stream) {
  constexpr int kWidth = static_cast<int>(sizeof(Vector) / sizeof(Element));
  const bool vectors = arguments.num_columns % kWidth == 0 &&
                       fits_vectors(0, 1, arguments.gradient, arguments.output, arguments.delta);
  return vectors ? launch_relu_backward<Element, Sum, kWidth>(arguments, stream)
                 : launch_relu_backward<Element, Sum, 1>(arguments, stream);
}

template <typename Element, typename Sum, int kWidth>
int launch_output_layer(const OutputLayerArguments& arguments, bool backward, void* stream) {
  if (!backward) {
    const int64_t blocks = blocks_for(arguments.num_rows, kTeams * kRowsInFlight);
    return blocks == 0 ? 0
                       : launch(apply_output_layer<Element, Sum, kWidth>, blocks, kBlockThreads, 0,
                                stream, arguments);
  }
  constexpr int kBlockColumns = kSumLanes * kWidth;
  const int64_t rows = blocks_for(arguments.num_rows, kOutputLayerRows);
  const int64_t across = blocks_for(arguments.num_columns, kBlockColumns);
  const size_t shared_bytes = sizeof(Sum) * kTeams * (2 * kBlockColumns + 1);
  if (rows > 0) {
    const int status = launch(differentiate_output_layer<Element, Sum, kWidth>, rows * across,
                              kBlockThreads, shared_bytes, stream, arguments);
    if (status != 0) {
      return status;
    }
  }
  return launch_adding<Sum>(
      {arguments.block_sums, arguments.sums, rows, 2 * arguments.num_columns + 1}, stream);
}

template <typename Element, typename Sum>
int launch_output_layer(const OutputLayerArguments& arguments, bool backward, void* stream) {
  constexpr int kWidth = static_cast<int>(sizeof(Vector) / sizeof(Element));
  const bool vectors = arguments.num_columns % kWidth == 0 &&
                       fits_vectors(0, 1, arguments.x, arguments.weight, arguments.delta);
  return vectors ? launch_output_layer<Element, Sum, kWidth>(arguments, backward, stream)
                 : launch_output_layer<Element, Sum, 1>(arguments, backward, stream);
}

int run_output_layer(const OutputLayerArguments& arguments, bool backward, void* stream) {
  if (arguments.dtype == Dtype::kFloat64) {
    return launch_output_layer<double, double>(arguments, backward, stream);
  }
  return with_float_type(arguments.dtype, [&](auto type) {
    return launch_output_layer<typename decltype(type)::type, float>(arguments, backward, stream);
  });
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

int output_layer(const OutputLayerArguments& arguments, void* stream) {
  return run_output_layer(arguments, false, stream);
}

int output_layer_backward(const OutputLayerArguments& arguments, void* stream) {
  return run_output_layer(arguments, true, stream);
}

int cross_entropy(const CrossEntropyArguments& arguments, void* stream) {
  const int64_t blocks = blocks_for(arguments.num_rows, kCrossEntropyRows);
  if (blocks > 0) {
    const int status = launch(kernels::cross_entropy, blocks, kBlockThreads, sizeof(float) * kTeams,
                              stream, arguments);
    if (status != 0) {
      return status;
    }
  }
  return launch_adding<float>({arguments.block_sums, arguments.sum, blocks, 1}, stream);
}

}  // namespace recsys::device
