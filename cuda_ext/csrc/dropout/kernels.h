// SPDX-License-Identifier: Apache-2.0
// Kernel of dropout by random bytes, for the CPU: its arguments.
#pragma once

#include <cstdint>

#include "../dtypes.h"

namespace recsys {

// result = value * 256 / (256 - dropped_levels) where the byte is at least dropped_levels, else
// value * 0.
struct DropoutArguments {
  Dtype dtype;           // of values and results
  const void* values;    // [n]
  const uint8_t* draws;  // [n] random
  int64_t dropped_levels;
  void* results;  // [n]
};

}  // namespace recsys

namespace recsys::cpu {

void run_dropout(const DropoutArguments& arguments, int64_t count);

}  // namespace recsys::cpu
