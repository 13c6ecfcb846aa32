// SPDX-License-Identifier: Apache-2.0
// The one op that belongs to no folder.
#include "registration.h"

#include <string>

#include "cpu/kernel_table.h"

RECSYS_SCHEMAS(library) { library.def("cpu_instruction_set() -> str"); }

static std::string cpu_instruction_set() {
#ifdef RECSYS_EMULATOR
  return "emulated CUDA";
#else
  return recsys::cpu::instruction_set();
#endif
}

RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CompositeExplicitAutograd, library) {
  library.impl("cpu_instruction_set", TORCH_BOX(&cpu_instruction_set));
}
