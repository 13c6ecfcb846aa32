// SPDX-License-Identifier: Apache-2.0
#include "kernel_table.h"

#include <atomic>

#include "choose.h"

namespace recsys::cpu {
namespace {

const KernelTable& choose(const char* wanted) {
#if defined(__x86_64__)
  return choose_kernels<KernelTable>({&avx512_kernels, &avx2_kernels, &portable_kernels}, wanted);
#else
  return choose_kernels<KernelTable>({&portable_kernels}, wanted);
#endif
}

std::atomic<const KernelTable*> chosen{nullptr};

}  // namespace

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_relaxed);
  if (table == nullptr) {
    table = &choose(std::getenv(kKernelsVariable));
    chosen.store(table, std::memory_order_relaxed);
  }
  return *table;
}

void use_kernels(const char* name) { chosen.store(&choose(name), std::memory_order_relaxed); }

}  // namespace recsys::cpu
