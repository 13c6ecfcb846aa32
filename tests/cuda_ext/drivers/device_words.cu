// SPDX-License-Identifier: Apache-2.0
// What the tensor cores and conversions make of numbers that are known to the test: compiled by
// nvcc for a device, and as C++ for the emulator, which must give the same.
#include <cstring>

#include "cuda/intrinsics.cuh"
#include "cuda/launch.cuh"

namespace {

using namespace recsys;

constexpr int kLanes = 32;
constexpr int kConversions = 4096;

// Small integers, so that every product and sum is exact; `i` numbers the registers of the warp.
// Of tf32 the device drops the low 13 bits: they are filled with ones.
template <typename T>
__device__ __forceinline__ uint32_t operand(int i) {
  const auto integer = [](int j) { return static_cast<float>((j * 37 + j / 11) % 17 - 8); };
  if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(integer(i)) | 0x1fffu;
  } else {
    return pack_pair<T>(integer(2 * i), integer(2 * i + 1));
  }
}

template <typename T>
__global__ void multiply(float* products) {
  const int lane = threadIdx.x;
  uint32_t a[4];
  uint32_t b[2];
  float c[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = operand<T>(lane * 4 + i);
    c[i] = static_cast<float>(lane * 4 + i);
  }
  for (int i = 0; i < 2; ++i) {
    b[i] = operand<T>(1000 + lane * 2 + i);
  }
  multiply_add<T>(c, a, b);
  for (int i = 0; i < 4; ++i) {
    products[lane * 4 + i] = c[i];
  }
}

// Bits spread over all signs and exponents, then those next to halfway between two results.
__device__ __forceinline__ uint32_t pattern(int i) {
  const uint32_t spread = static_cast<uint32_t>(i) * 0x9e3779b9u;
  return i % 2 == 0 ? spread : (spread & 0xfffff000u) | (i % 4 == 1 ? 0x0u : 0x1000u);
}

__global__ void convert_patterns(uint32_t* words) {
  for (int i = threadIdx.x; i < kConversions; i += blockDim.x) {
    const float value = __uint_as_float(pattern(i));
    words[i] = pack_pair<bfloat16>(value, 1.0f);
    words[kConversions + i] = pack_pair<float16>(value, 1.0f);
    words[2 * kConversions + i] = round_to_tf32(value);
    words[3 * kConversions + i] = convert<bfloat16>(value).bits;
    words[4 * kConversions + i] = convert<float16>(value).bits;
    const auto half = static_cast<uint16_t>(i * 16 + i / 256);
    words[5 * kConversions + i] = __float_as_uint(to_float(float16{half}));
  }
}

}  // namespace

// Writes all results, one array after the other, to memory of the host; 0 where nothing failed.
extern "C" __attribute__((visibility("default"))) int device_words(uint32_t* words) {
  constexpr int kProducts = kLanes * 4;
  constexpr int kWords = 3 * kProducts + 6 * kConversions;
  constexpr size_t kBytes = kWords * sizeof(uint32_t);
#ifdef RECSYS_EMULATOR
  uint32_t* results = words;
  std::memset(results, 0, kBytes);
#else
  uint32_t* results = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&results), kBytes) != cudaSuccess ||
      cudaMemset(results, 0, kBytes) != cudaSuccess) {
    return 1;
  }
#endif
  auto* floats = reinterpret_cast<float*>(results);
  uint32_t* conversions = results + 3 * kProducts;
  int status = launch(multiply<bfloat16>, 1, kLanes, 0, nullptr, floats);
  status |= launch(multiply<float16>, 1, kLanes, 0, nullptr, floats + kProducts);
  status |= launch(multiply<float>, 1, kLanes, 0, nullptr, floats + 2 * kProducts);
  status |= launch(convert_patterns, 1, 128, 0, nullptr, conversions);
#ifndef RECSYS_EMULATOR
  status |= cudaMemcpy(words, results, kBytes, cudaMemcpyDeviceToHost);
  cudaFree(results);
#endif
  return status;
}
