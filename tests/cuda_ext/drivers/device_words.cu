// SPDX-License-Identifier: Apache-2.0
// Prints what the tensor cores, conversions and vector additions make of numbers that are known to
// the test: compiled by nvcc for a device, and as C++ for the emulator, which must print the same.
#include <cstdio>
#include <cstdlib>

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

__global__ void add_vectors(float* sums) {
  const float values[4] = {1, 2, 3, 4};
  atomic_add_vector(sums + 4 * (threadIdx.x % 4), values);
}

template <typename T>
T* zeros(int count) {
  void* memory = nullptr;
#ifdef RECSYS_EMULATOR
  memory = std::calloc(count, sizeof(T));
#else
  if (cudaMallocManaged(&memory, count * sizeof(T)) != cudaSuccess ||
      cudaMemset(memory, 0, count * sizeof(T)) != cudaSuccess) {
    std::exit(2);
  }
#endif
  return static_cast<T*>(memory);
}

template <typename T>
void print(const char* name, const T* words, int count) {
#ifndef RECSYS_EMULATOR
  if (cudaDeviceSynchronize() != cudaSuccess) {
    std::exit(2);
  }
#endif
  for (int i = 0; i < count; ++i) {
    uint32_t bits;
    static_assert(sizeof(T) == sizeof(bits));
    __builtin_memcpy(&bits, words + i, sizeof(bits));
    std::printf("%s %d %08x\n", name, i, bits);
  }
}

template <typename T>
void print_products(const char* name) {
  float* products = zeros<float>(kLanes * 4);
  if (launch(multiply<T>, 1, kLanes, 0, nullptr, products) != 0) {
    std::exit(2);
  }
  print(name, products, kLanes * 4);
}

}  // namespace

int main() {
  print_products<bfloat16>("multiply_bfloat16");
  print_products<float16>("multiply_float16");
  print_products<float>("multiply_tf32");
  const char* names[] = {"pack_bfloat16", "pack_float16", "round_to_tf32",
                         "to_bfloat16",   "to_float16",   "from_float16"};
  uint32_t* words = zeros<uint32_t>(6 * kConversions);
  float* sums = zeros<float>(16);
  if (launch(convert_patterns, 1, 128, 0, nullptr, words) != 0 ||
      launch(add_vectors, 1, 64, 0, nullptr, sums) != 0) {
    return 2;
  }
  for (int i = 0; i < 6; ++i) {
    print(names[i], words + i * kConversions, kConversions);
  }
  print("add_vectors", sums, 16);
  return 0;
}
