// SPDX-License-Identifier: Apache-2.0
// Types of kernels that CUDA C++ has only in headers of its own.
#pragma once

#include <cstdint>

namespace recsys {

// 16-bit floating-point numbers, as their bits.
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

// 16 bytes, the most that one load or store moves.
struct alignas(16) Vector {
  uint32_t words[4];
};

}  // namespace recsys
