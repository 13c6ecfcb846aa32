// SPDX-License-Identifier: Apache-2.0
// The choice among tables of kernels, one for each instruction set.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace recsys::cpu {

// Returns whether this CPU runs the kernels of an instruction set.
inline bool cpu_runs(const std::string& instruction_set) {
  if (instruction_set == "portable") return true;
#if defined(__x86_64__)
  // Every processor with AVX2 converts float16 too (F16C), which clang 14 cannot ask for.
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (instruction_set == "avx2") return has_avx2;
  if (instruction_set == "avx512") {
    return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
#endif
  return false;
}

constexpr const char* kKernelsVariable = "RECSYS_CPU_KERNELS";

// Returns the table named `wanted`, by default the value of RECSYS_CPU_KERNELS; if that is null,
// the first table that this CPU runs. Throws std::runtime_error if the CPU lacks the instruction
// set.
template <typename Table, int kTables>
const Table& choose_kernels(const Table* const (&best_first)[kTables],
                            const char* wanted = std::getenv(kKernelsVariable)) {
  for (const Table* table : best_first) {
    const bool is_wanted = wanted == nullptr || std::string(wanted) == table->name;
    if (is_wanted && cpu_runs(table->name)) return *table;
  }
  throw std::runtime_error(std::string(kKernelsVariable) + "=" + wanted +
                           ": expected portable, avx2 or avx512, and a CPU that has it; unset it "
                           "for the best kernels of this CPU");
}

}  // namespace recsys::cpu
