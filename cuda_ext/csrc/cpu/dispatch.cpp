// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernel_table.h"

namespace recsys::cpu {
namespace {

constexpr const char* kVariable = "RECSYS_CPU_KERNELS";

bool cpu_runs(const KernelTable& table) {
#if defined(__x86_64__)
  if (&table == &avx2_kernels || &table == &avx512_kernels) {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
    if (&table == &avx2_kernels) return has_avx2;
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return &table == &portable_kernels;
}

const KernelTable& choose_kernels() {
#if defined(__x86_64__)
  const KernelTable* const best_first[] = {&avx512_kernels, &avx2_kernels, &portable_kernels};
#else
  const KernelTable* const best_first[] = {&portable_kernels};
#endif
  const char* const wanted = std::getenv(kVariable);
  for (const KernelTable* table : best_first) {
    const bool is_wanted = wanted == nullptr || std::string(wanted) == table->name;
    if (is_wanted && cpu_runs(*table)) return *table;
  }
  throw std::runtime_error(std::string(kVariable) + "=" + wanted +
                           ": expected portable, avx2 or avx512, and a CPU that has it; unset it "
                           "for the best kernels of this CPU");
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose_kernels();
  return chosen;
}

const char* instruction_set() { return kernels().name; }

}  // namespace recsys::cpu
