// SPDX-License-Identifier: Apache-2.0
// The ops that belong to no folder: what this processor is.
#include "registration.h"

#include <string>

#include "cpu/kernel_table.h"

RECSYS_SCHEMAS(library) {
  library.def("cpu_instruction_set() -> str");
  library.def("cpu_is_intel() -> bool");
}

static std::string cpu_instruction_set() {
#ifdef RECSYS_EMULATOR
  return "emulated CUDA";
#else
  return recsys::cpu::instruction_set();
#endif
}

static bool cpu_is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CompositeExplicitAutograd, library) {
  library.impl("cpu_instruction_set", TORCH_BOX(&cpu_instruction_set));
  library.impl("cpu_is_intel", TORCH_BOX(&cpu_is_intel));
}
