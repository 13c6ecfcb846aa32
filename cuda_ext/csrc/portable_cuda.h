// SPDX-License-Identifier: Apache-2.0
// portable.h for nvcc. sm_80 and later.
#pragma once

#include <cuda_runtime.h>

#define RECSYS_KERNEL(name) __global__ void name
// A kernel of blocks of `threads`, of which `blocks` are to fit a multiprocessor at once.
#define RECSYS_BOUNDED_KERNEL(name, threads, blocks) \
  __global__ void __launch_bounds__(threads, blocks) name
#define RECSYS_DEVICE __device__ __forceinline__
#define RECSYS_HOST_DEVICE __host__ __device__ __forceinline__
#define RECSYS_SHARED __shared__
#define RECSYS_LAUNCH(...) ::recsys::launch(__VA_ARGS__)

namespace recsys {

constexpr unsigned kAllLanes = 0xffffffffu;

template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared_bytes,
           void* stream, const Arguments&... arguments) {
  if (blocks > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes,
           static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cudaGetLastError();
}

// Returns 0 where the device cannot be asked; a launch then says why.
template <typename... Parameters>
int64_t resident_blocks(void (*kernel)(Parameters...), int threads, size_t shared_bytes) {
  int device = 0;
  int multiprocessors = 0;
  int blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes) !=
          cudaSuccess) {
    return 0;
  }
  return static_cast<int64_t>(multiprocessors) * blocks;
}

RECSYS_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
RECSYS_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
RECSYS_DEVICE int block_size() { return static_cast<int>(blockDim.x); }
RECSYS_DEVICE int grid_size() { return static_cast<int>(gridDim.x); }

RECSYS_DEVICE void sync_warp() { __syncwarp(); }
RECSYS_DEVICE void sync_block() { __syncthreads(); }

template <typename T>
RECSYS_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
template <typename T>
RECSYS_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <typename T>
RECSYS_DEVICE T shuffle_down(T value, int distance) {
  return __shfl_down_sync(kAllLanes, value, distance);
}
RECSYS_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(kAllLanes, vote); }

template <typename T>
using SharedPointer = T*;

template <typename T>
RECSYS_DEVICE SharedPointer<T> dynamic_shared() {
  extern __shared__ Vector recsys_dynamic_shared[];
  return reinterpret_cast<T*>(recsys_dynamic_shared);
}

template <typename T>
RECSYS_DEVICE Vector load_vector(const T* address) {
  return *reinterpret_cast<const Vector*>(address);
}
template <typename T>
RECSYS_DEVICE void store_vector(T* address, const Vector& vector) {
  *reinterpret_cast<Vector*>(address) = vector;
}

RECSYS_DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
RECSYS_DEVICE uint32_t bits_of_float(float value) { return __float_as_uint(value); }

RECSYS_DEVICE float to_float(bfloat16 value) {
  return float_of_bits(static_cast<uint32_t>(value.bits) << 16);
}
RECSYS_DEVICE float to_float(float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

template <typename T>
RECSYS_DEVICE T round_to(float value) {
  T result;
  if constexpr (std::is_same_v<T, float16>) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  } else {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  }
  return result;
}

// Two numbers rounded into a word, `low` in its low half.
template <typename T>
RECSYS_DEVICE uint32_t pack_pair(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, float16>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// Ties go away from zero.
RECSYS_DEVICE uint32_t round_to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

// [16, 8] += [16, K] [K, 8]; K is 16 for 16-bit numbers, 8 for float, which is read as tf32.
template <typename T>
RECSYS_DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, float16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

RECSYS_DEVICE void atomic_add(float* address, float value) { atomicAdd(address, value); }

// `address` is a multiple of 16 bytes.
RECSYS_DEVICE void atomic_add_vector(float* address, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(address)),
      "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
      : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    atomicAdd(address + i, values[i]);
  }
#endif
}

RECSYS_DEVICE void atomic_min(int64_t* address, int64_t value) {
  static_assert(sizeof(long long) == sizeof(int64_t));
  atomicMin(reinterpret_cast<long long*>(address), static_cast<long long>(value));
}

}  // namespace recsys
