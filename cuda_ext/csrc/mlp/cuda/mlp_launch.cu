// SPDX-License-Identifier: Apache-2.0
// Launches the kernels of an MLP other than large products.
#include "../../cuda/dispatch.cuh"
#include "cross_entropy.cuh"
#include "output_layer.cuh"
#include "relu_backward.cuh"

namespace recsys::device {

using namespace kernels;

namespace {

constexpr int kAddingThreads = 1024;
constexpr int kTeams = kBlockThreads / kSumLanes;

// Launches a kernel that writes sums of each of `num_blocks` blocks of samples, if there are any,
// and the kernel that adds them up.
template <typename Kernel, typename Arguments>
int launch_with_sums(Kernel kernel, const Arguments& arguments, int64_t num_blocks, int64_t across,
                     int numbers_of_team, const BlockSums& sums, void* stream) {
  if (num_blocks > 0) {
    const int status = launch(kernel, num_blocks * across, kBlockThreads,
                              sizeof(float) * kTeams * numbers_of_team, stream, arguments);
    if (status != 0) {
      return status;
    }
  }
  return launch(add_block_sums, blocks_for(sums.num_columns, kSumLanes), kAddingThreads,
                sizeof(float) * kAddingThreads, stream, sums);
}

// Calls f(element type, columns that a lane takes at once): a vector of them if rows allow it.
template <typename Function, typename... Pointers>
int with_element_and_width(Dtype dtype, int64_t num_columns, const Function& f,
                           Pointers... pointers) {
  return with_float_type(dtype, [&](auto type) {
    constexpr int kWidth = static_cast<int>(sizeof(Vector) / sizeof(typename decltype(type)::type));
    const bool vectors = num_columns % kWidth == 0 && fits_vectors(0, 1, pointers...);
    return vectors ? f(type, std::integral_constant<int, kWidth>{})
                   : f(type, std::integral_constant<int, 1>{});
  });
}

}  // namespace

int relu_backward(const ReluBackwardArguments& arguments, void* stream) {
  const int64_t columns = arguments.num_columns;
  if (columns == 0) {
    return 0;
  }
  const auto run = [&](auto type, auto width) {
    constexpr int kBlockColumns = kSumLanes * decltype(width)::value;
    const int64_t blocks = blocks_for(arguments.num_rows, kReluBackwardRows);
    return launch_with_sums(mask_gradient<typename decltype(type)::type, decltype(width)::value>,
                            arguments, blocks, blocks_for(columns, kBlockColumns), kBlockColumns,
                            {arguments.block_sums, arguments.sums, blocks, columns}, stream);
  };
  return with_element_and_width(arguments.dtype, columns, run, arguments.gradient, arguments.output,
                                arguments.delta);
}

int output_layer(const OutputLayerArguments& arguments, void* stream) {
  const int64_t blocks = blocks_for(arguments.num_rows, kTeams * kRowsInFlight);
  const auto run = [&](auto type, auto width) {
    return launch(apply_output_layer<typename decltype(type)::type, decltype(width)::value>, blocks,
                  kBlockThreads, 0, stream, arguments);
  };
  return blocks == 0 ? 0
                     : with_element_and_width(arguments.dtype, arguments.num_columns, run,
                                              arguments.x, arguments.weight);
}

int output_layer_backward(const OutputLayerArguments& arguments, void* stream) {
  const int64_t columns = arguments.num_columns;
  const auto run = [&](auto type, auto width) {
    constexpr int kBlockColumns = kSumLanes * decltype(width)::value;
    const int64_t blocks = blocks_for(arguments.num_rows, kOutputLayerRows);
    return launch_with_sums(
        differentiate_output_layer<typename decltype(type)::type, decltype(width)::value>,
        arguments, blocks, blocks_for(columns, kBlockColumns), 2 * kBlockColumns + 1,
        {arguments.block_sums, arguments.sums, blocks, 2 * columns + 1}, stream);
  };
  return with_element_and_width(arguments.dtype, columns, run, arguments.x, arguments.weight,
                                arguments.delta);
}

int cross_entropy(const CrossEntropyArguments& arguments, void* stream) {
  const int64_t blocks = blocks_for(arguments.num_rows, kCrossEntropyRows);
  return launch_with_sums(kernels::cross_entropy, arguments, blocks, 1, 1,
                          {arguments.block_sums, arguments.sum, blocks, 1}, stream);
}

}  // namespace recsys::device
