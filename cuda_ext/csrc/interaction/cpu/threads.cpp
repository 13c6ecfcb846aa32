// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

// Samples that a thread takes at least: starting one costs some ten microseconds.
int64_t grain(const InteractionArguments& arguments) {
  constexpr int64_t kMultiplicationsPerThread = 1 << 20;
  const int64_t of_sample = int64_t{arguments.num_vectors} * arguments.num_vectors * arguments.dim;
  return 1 + kMultiplicationsPerThread / of_sample;
}

// Whether the exponent of a stored number of rest_gradient is all ones: infinite, or NaN.
template <typename Bits>
bool has_overflow_in(const InteractionArguments& arguments, Bits exponent) {
  std::atomic<bool> found = false;
  const int64_t columns = int64_t{arguments.num_vectors - 1} * arguments.dim;
  parallel_for(arguments.batch, grain(arguments), [&](int64_t begin, int64_t end) {
    bool in_range = false;
    for (int64_t sample = begin; sample < end; ++sample) {
      const Bits* row = static_cast<const Bits*>(arguments.rest_gradient) +
                        sample * arguments.rest_gradient_stride;
      for (int64_t i = 0; i < columns; ++i) in_range |= (row[i] & exponent) == exponent;
    }
    if (in_range) found = true;
  });
  return found;
}

// CPUs train without a loss scale, so that another pass over the gradients costs nobody anything.
bool has_overflow(const InteractionArguments& arguments) {
  switch (arguments.dtype) {
    case Dtype::kBFloat16:
      return has_overflow_in<uint16_t>(arguments, 0x7f80);
    case Dtype::kFloat32:
      return has_overflow_in<uint32_t>(arguments, 0x7f800000);
    default:
      break;
  }
  return has_overflow_in<uint64_t>(arguments, 0x7ff0000000000000);
}

}  // namespace

void dot_interaction(const InteractionArguments& arguments) {
  const InteractionKernels& chosen = kernels().interaction;
  parallel_for(arguments.batch, grain(arguments),
               [&](int64_t begin, int64_t end) { chosen.forward(arguments, begin, end); });
}

void dot_interaction_backward(const InteractionArguments& arguments) {
  const InteractionKernels& chosen = kernels().interaction;
  parallel_for(arguments.batch, grain(arguments),
               [&](int64_t begin, int64_t end) { chosen.backward(arguments, begin, end); });
  if (arguments.overflow != nullptr && has_overflow(arguments)) {
    *arguments.overflow = true;
  }
}

}  // namespace recsys::cpu
