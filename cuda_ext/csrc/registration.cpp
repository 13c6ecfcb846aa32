// SPDX-License-Identifier: Apache-2.0
// The ops that belong to no folder: they describe this processor.
#include "registration.h"

#include <string>

#include "cpu/kernel_table.h"

static std::string cpu_instruction_set() {
#ifdef RECSYS_EMULATOR
  return "emulated CUDA";
#else
  return recsys::cpu::kernels().name;  // avx512, avx2 or portable
#endif
}

// For tests: an empty name selects the best kernels again.
static void use_cpu_kernels([[maybe_unused]] const std::string& name) {
#ifndef RECSYS_EMULATOR
  recsys::cpu::use_kernels(name.empty() ? nullptr : name.c_str());
#endif
}

static bool cpu_is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

static const recsys::Op kOps[] = {
    {"cpu_instruction_set() -> str", TORCH_BOX(&cpu_instruction_set)},
    {"cpu_is_intel() -> bool", TORCH_BOX(&cpu_is_intel)},
    {"use_cpu_kernels(str name) -> ()", TORCH_BOX(&use_cpu_kernels)},
};

RECSYS_DEFINE(kOps)
RECSYS_IMPLEMENT(CompositeExplicitAutograd, kOps)
