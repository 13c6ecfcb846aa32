// SPDX-License-Identifier: Apache-2.0
// Device functions for what CUDA C++ leaves to PTX: vector loads, conversions, tensor cores.
// sm_80 and later. The emulator has its own in emu/intrinsics.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "number_types.cuh"

namespace recsys {

constexpr unsigned kAllLanes = 0xffffffffu;

}  // namespace recsys

#ifdef RECSYS_EMULATOR
#include "../../emu/intrinsics.h"
#else

namespace recsys {

// A pointer to shared memory; the emulator's version reports accesses that no barrier separates.
template <typename T>
using SharedPointer = T*;

// Returns the block's dynamic shared memory.
template <typename T>
__device__ __forceinline__ SharedPointer<T> dynamic_shared() {
  extern __shared__ Vector recsys_dynamic_shared[];
  return reinterpret_cast<T*>(recsys_dynamic_shared);
}

// One number in global memory; the emulator watches these.
template <typename T>
__device__ __forceinline__ T load_global(const T* address) {
  return *address;
}
template <typename T>
__device__ __forceinline__ void store_global(T* address, const T& value) {
  *address = value;
}

// Sets a flag that other threads may set too.
__device__ __forceinline__ void raise_flag(bool* flag) { *flag = true; }

// `address` is a multiple of 16 bytes, in global or shared memory.
template <typename T>
__device__ __forceinline__ Vector load_vector(const T* address) {
  return *reinterpret_cast<const Vector*>(address);
}
template <typename T>
__device__ __forceinline__ void store_vector(T* address, const Vector& vector) {
  *reinterpret_cast<Vector*>(address) = vector;
}
// Only to global memory, in one instruction: the compiler splits a plain store in an unrolled loop
// into four of 4 bytes.
template <typename T>
__device__ __forceinline__ void store_global_vector(T* address, const Vector& vector) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(address)),
               "r"(vector.words[0]), "r"(vector.words[1]), "r"(vector.words[2]),
               "r"(vector.words[3])
               : "memory");
}

__device__ __forceinline__ float to_float(bfloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ float to_float(float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

template <typename T>
__device__ __forceinline__ T round_to(float value) {
  T result;
  if constexpr (std::is_same_v<T, float16>) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  } else {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  }
  return result;
}

// Rounds two numbers into a word, `low` in its low half.
template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, float16>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// Rounds ties away from zero.
__device__ __forceinline__ uint32_t round_to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

// Tensor cores: [16, 8] += [16, K] [K, 8]; K is 16 for 16-bit numbers, 8 for float, which is read
// as tf32. All lanes of a warp call it together: volatile keeps compilers from moving it into a
// branch.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, float16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

}  // namespace recsys

#endif

namespace recsys {

// Whether a word of numbers of type T holds an infinity or NaN: their exponents are all ones, and
// adding one carries into the bit of the sign.
template <typename T>
__device__ __forceinline__ bool has_overflow(uint32_t word) {
  if constexpr (std::is_same_v<T, float16>) {
    return (((word & 0x7c007c00u) + 0x04000400u) & 0x80008000u) != 0;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return (((word & 0x7f807f80u) + 0x00800080u) & 0x80008000u) != 0;
  } else {
    static_assert(std::is_same_v<T, float>);
    return (word & 0x7f800000u) == 0x7f800000u;
  }
}

// Rounds to nearest even where bits are lost.
template <typename To, typename From>
__device__ __forceinline__ To convert(From value) {
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
