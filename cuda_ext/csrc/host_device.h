// SPDX-License-Identifier: Apache-2.0
// Marks functions that the C++ compiler and nvcc both compile, for kernels of either side.
#pragma once

#ifdef __CUDACC__
#define RECSYS_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define RECSYS_HOST_DEVICE inline __attribute__((always_inline))
#endif
