// SPDX-License-Identifier: Apache-2.0
// Launches of kernels, on the host.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace recsys {

// Launches `kernel<<<blocks, threads, shared_bytes, stream>>>(arguments...)`.
template <typename... Parameters>
int launch(void (*kernel)(Parameters...), int64_t blocks, int threads, size_t shared_bytes,
           void* stream, std::common_type_t<Parameters>... arguments) {
  if (blocks > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  void* addresses[] = {&arguments...};
  cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                   dim3(static_cast<unsigned>(threads)), addresses, shared_bytes,
                   static_cast<cudaStream_t>(stream));
  return cudaGetLastError();  // and clears it for the next launch
}

// Returns the number of blocks that the device runs at once, for a grid of fixed size; 0 if the
// query fails: the launch then reports the error.
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

}  // namespace recsys
