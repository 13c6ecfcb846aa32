// SPDX-License-Identifier: Apache-2.0
// What kernels are written in: the few words that a CUDA device and the emulator both understand.
// Only this file knows which of them compiles. Kernels and launches see these names:
//
//   RECSYS_KERNEL(name)(parameters) {...}    a kernel; RECSYS_DEVICE a function that it calls
//   RECSYS_HOST_DEVICE                       a function of both sides
//   RECSYS_BOUNDED_KERNEL(name, threads, resident blocks)(parameters) {...}
//   RECSYS_SHARED type name;                 a variable of the block
//   RECSYS_LAUNCH(kernel, blocks, block threads, shared bytes, stream, arguments...)  ->
//   cudaError_t resident_blocks(kernel, threads, bytes)  blocks that the device runs at once, for
//   fixed grids thread_index block_index block_size grid_size sync_warp sync_block the only
//   barriers; a shuffle orders no memory shuffle shuffle_xor shuffle_down ballot  all lanes of a
//   warp must come together dynamic_shared<T>()                      SharedPointer<T> to the
//   block's dynamic memory load_vector store_vector                 16 bytes of global or shared
//   memory convert<To>(value) pack_pair<T>(low, high) round_to_tf32(value) multiply_add<T>(c, a, b)
//   c += a b on the tensor cores, T says of what atomic_add atomic_add_vector atomic_min
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace recsys {

// 16-bit floating-point numbers, as their bits.
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

// What one load or store moves at most.
struct alignas(16) Vector {
  uint32_t words[4];
};

}  // namespace recsys

#ifdef RECSYS_EMULATOR
#include "../emu/emulated_device.h"
#else
#include "portable_cuda.h"
#endif

namespace recsys {

// Rounds to nearest even where bits are lost.
template <typename To, typename From>
RECSYS_DEVICE To convert(From value) {
  constexpr bool kFromHalf = std::is_same_v<From, float16> || std::is_same_v<From, bfloat16>;
  constexpr bool kToHalf = std::is_same_v<To, float16> || std::is_same_v<To, bfloat16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kFromHalf) {
    return convert<To>(to_float(value));
  } else if constexpr (kToHalf) {
    return round_to<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace recsys
