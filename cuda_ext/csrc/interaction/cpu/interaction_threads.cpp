// SPDX-License-Identifier: Apache-2.0
#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

// Fewest samples of a thread: starting one costs some ten microseconds.
int64_t grain(const InteractionArguments& arguments) {
  constexpr int64_t kMultiplicationsPerThread = 1 << 20;
  const int64_t of_sample = int64_t{arguments.num_vectors} * arguments.num_vectors * arguments.dim;
  return 1 + kMultiplicationsPerThread / of_sample;
}

}  // namespace

void dot_interaction(const InteractionArguments& arguments) {
  parallel_for(arguments.batch, grain(arguments),
               [&](int64_t begin, int64_t end) { kernels().interaction(arguments, begin, end); });
}

void dot_interaction_backward(const InteractionArguments& arguments) {
  parallel_for(arguments.batch, grain(arguments), [&](int64_t begin, int64_t end) {
    kernels().interaction_backward(arguments, begin, end);
  });
}

}  // namespace recsys::cpu
