// SPDX-License-Identifier: Apache-2.0
// torch op of dropout by random bytes, on the CPU.
#ifndef RECSYS_EMULATOR
#include "../registration.h"
#include "../tensor_arguments.h"
#include "kernels.h"

namespace recsys {
namespace {

Tensor byte_dropout(const Tensor& values, const Tensor& draws, int64_t dropped_levels) {
  const char* const op = "byte_dropout";
  check_contiguous(values, op, "values");
  STD_TORCH_CHECK(dropped_levels >= 0 && dropped_levels < 256, op,
                  ": dropped_levels must be 0 to 255");
  DropoutArguments arguments{};
  arguments.dtype = dtype_of(values, op, "values");
  arguments.values = values.data_ptr();
  arguments.draws =
      optional_data<const uint8_t>(draws, values, ScalarType::Byte, values.numel(), op, "draws");
  arguments.dropped_levels = dropped_levels;
  Tensor results = torch::stable::empty_like(values);
  arguments.results = results.data_ptr();
  cpu::run_dropout(arguments, values.numel());
  return results;
}

}  // namespace
}  // namespace recsys

RECSYS_SCHEMAS(library) {
  library.def("byte_dropout(Tensor values, Tensor draws, int dropped_levels) -> Tensor");
}

RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CPU, library) {
  library.impl("byte_dropout", TORCH_BOX(&recsys::byte_dropout));
}
#endif  // RECSYS_EMULATOR
