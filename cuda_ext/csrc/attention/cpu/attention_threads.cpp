// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

// Threads take one head of a sequence at a time, because lengths differ.
void for_each_head(const AttentionArguments& arguments, HeadKernel kernel) {
  int64_t keys = 0;
  for (int64_t s = 0; s < arguments.num_sequences; ++s) {
    keys = std::max(keys, arguments.key_offsets[s + 1] - arguments.key_offsets[s]);
  }
  const int64_t bytes = kernels().attention_scratch_bytes(arguments, keys);
  const int64_t tasks = arguments.num_sequences * arguments.num_heads;
  std::atomic<int64_t> next{0};
  parallel_for(std::min<int64_t>(num_threads(), tasks), 1, [&](int64_t, int64_t) {
    constexpr std::align_val_t kAlignment{64};
    const auto release = [](char* memory) { ::operator delete(memory, kAlignment); };
    const std::unique_ptr<char, decltype(release)> scratch(
        static_cast<char*>(::operator new(bytes, kAlignment)), release);
    for (int64_t task = next++; task < tasks; task = next++) {
      kernel(arguments, task / arguments.num_heads, task % arguments.num_heads, scratch.get());
    }
  });
}

}  // namespace

void run_attention(const AttentionArguments& arguments) {
  for_each_head(arguments, kernels().attention);
}

void run_attention_backward(const AttentionArguments& arguments) {
  for_each_head(arguments, kernels().attention_backward);
}

}  // namespace recsys::cpu
