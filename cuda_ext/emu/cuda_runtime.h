// SPDX-License-Identifier: Apache-2.0
// The emulator's <cuda_runtime.h>: as much of CUDA C++ as the kernels use, run on the CPU. It
// replaces the toolkit's because emulator builds search this folder first.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "block_scheduler.h"

#define __global__ inline
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__ static  // blocks run one after the other
#define __launch_bounds__(...)

using cudaStream_t = void*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

inline void __syncwarp() { recsys::emulator::wait_for_warp("__syncwarp", nullptr, 0, true); }
inline void __syncthreads() { recsys::emulator::wait_for_block(); }

namespace recsys::emulator {

inline int own_lane() { return static_cast<int>(threadIdx.x) % kWarp; }

// Shows `value` to the warp, whose lanes must all take part.
template <typename T>
void exchange(const char* operation, unsigned mask, const T& value) {
  if (mask != 0xffffffffu) {
    fail(std::string(operation) + " without all lanes of the warp");
  }
  wait_for_warp(operation, &value, sizeof(T), false);
}

template <typename T>
T exchange(const char* operation, unsigned mask, T value, int from) {
  exchange(operation, mask, value);
  if (!took_part(from)) {
    fail(std::string(operation) + " reads lane " + std::to_string(from) +
         ", which has left the kernel");
  }
  std::memcpy(&value, shown_by(from), sizeof(T));
  return value;
}

inline cudaError_t& last_status() {
  static cudaError_t status = cudaSuccess;
  return status;
}

template <typename... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<Parameters*>(arguments[I])...);
}

}  // namespace recsys::emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  using namespace recsys::emulator;
  return exchange("__shfl_sync", mask, value, lane % kWarp);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  using namespace recsys::emulator;
  return exchange("__shfl_xor_sync", mask, value, own_lane() ^ lane_mask);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  using namespace recsys::emulator;
  const int from = own_lane() + static_cast<int>(distance);
  return exchange("__shfl_down_sync", mask, value, from < kWarp ? from : own_lane());
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  using namespace recsys::emulator;
  exchange("__ballot_sync", mask, vote);
  unsigned votes = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if (took_part(lane) && *static_cast<const bool*>(shown_by(lane))) {
      votes |= 1u << lane;
    }
  }
  return votes;
}

__forceinline__ float atomicAdd(float* address, float value) {
  recsys::emulator::record_global_atomic(address, sizeof(float));
  const float old = *address;
  *address = old + value;
  return old;
}
__forceinline__ long long atomicMin(long long* address, long long value) {
  recsys::emulator::record_global_atomic(address, sizeof(value));
  const long long old = *address;
  *address = value < old ? value : old;
  return old;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t /*stream*/) {
  using namespace recsys::emulator;
  const auto body = [&] { call(kernel, arguments, std::index_sequence_for<Parameters...>{}); };
  const bool went_well = run_blocks(grid.x, block.x, shared_bytes, body);
  return last_status() = went_well ? cudaSuccess : cudaErrorLaunchFailure;
}

inline cudaError_t cudaGetLastError() {
  return std::exchange(recsys::emulator::last_status(), cudaSuccess);
}

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int /*device*/) {
  *value = 1;
  return cudaSuccess;
}

// Few, so that each block of a grid of fixed size takes several samples.
template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Parameters...),
                                                          int /*threads*/,
                                                          size_t /*shared_bytes*/) {
  *blocks = 3;
  return cudaSuccess;
}
