// SPDX-License-Identifier: Apache-2.0
#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"
#include "../layers.h"

namespace recsys::cpu {
namespace {

// Fewest panels of a thread: waking one takes about as long as reading this much.
int64_t grain(const LayerArguments& arguments) {
  constexpr int64_t kBytesPerThread = 256 << 10;
  const int64_t samples = 1 + arguments.batch / 4;
  const int64_t bytes_of_panel = bytes_of(arguments.dtype) * arguments.num_inputs * kMlpPanel;
  return 1 + kBytesPerThread / (bytes_of_panel * samples);
}

}  // namespace

void run_layers_together(const LayersArguments& arguments) {
  forward_layers(arguments, [](const LayerArguments& layer) {
    parallel_for(num_panels(layer.num_outputs), grain(layer),
                 [&](int64_t begin, int64_t end) { kernels().layer(layer, begin, end); });
  });
}

void run_layers(const LayersArguments& arguments) {
  forward_layers(arguments, [](const LayerArguments& layer) {
    kernels().layer(layer, 0, num_panels(layer.num_outputs));
  });
}

int64_t samples_per_task(int64_t batch) {
  // Each thread reads all weights, which pays off from this many samples on.
  constexpr int64_t kFewest = 16;
  // The activations of more would not stay in the L2 cache.
  constexpr int64_t kMost = 96;
  const int64_t share = (batch + num_threads() - 1) / num_threads();
  if (share < kFewest && num_threads() > 1) return 0;
  // Tasks of one size, as many on each thread.
  const int64_t tasks = std::max<int64_t>((share + kMost - 1) / kMost, 1);
  return (share + tasks - 1) / tasks;
}

void relu_backward(const ReluBackwardArguments& arguments) {
  for_each_block(arguments.num_rows, kReluBackwardRows, [&](int64_t begin, int64_t end) {
    kernels().relu_backward(arguments, begin, end);
  });
}

}  // namespace recsys::cpu
