// SPDX-License-Identifier: Apache-2.0
#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

// Fewest outputs of a thread: waking one takes about as long as reading this much.
int64_t grain(const LayerArguments& arguments) {
  constexpr int64_t kBytesPerThread = 256 << 10;
  const int64_t samples = 1 + arguments.batch / 4;
  const int64_t bytes_of_row = bytes_of(arguments.dtype) * arguments.num_columns;
  const int64_t rows = 1 + kBytesPerThread / (bytes_of_row * samples);
  return (rows + 7) / 8 * 8;
}

}  // namespace

void run_layer(const LayerArguments& arguments) {
  parallel_for(arguments.num_rows, grain(arguments),
               [&](int64_t begin, int64_t end) { kernels().layer(arguments, begin, end); });
}

void relu_backward(const ReluBackwardArguments& arguments) {
  for_each_block(arguments.num_rows, kReluBackwardRows, [&](int64_t begin, int64_t end) {
    kernels().relu_backward(arguments, begin, end);
  });
}

}  // namespace recsys::cpu
