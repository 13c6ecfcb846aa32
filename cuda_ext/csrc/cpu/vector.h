// SPDX-License-Identifier: Apache-2.0
// SIMD vectors over the vector extensions of GCC and Clang, at the width of one instruction set.
//
// The CPU kernels are compiled once per instruction set. Whoever includes this sets
//   RECSYS_ISA           the namespace of everything compiled here, e.g. avx2
//   RECSYS_VECTOR_BYTES  16, 32 or 64
// Kernel headers stay in that namespace and call no inline function of the standard library: the
// linker keeps one copy of an inline function, and it might be one that this CPU cannot run.
#pragma once

#if !defined(RECSYS_ISA) || !defined(RECSYS_VECTOR_BYTES)
#error "set RECSYS_ISA and RECSYS_VECTOR_BYTES before the kernels are included"
#endif

#include <cstdint>
#include <cstring>
#include <utility>  // index_sequence: a type, no code

#include "../dtypes.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Arrays of vectors stay in registers only where GCC unrolls the loops over them, and inlines what
// they are handed to.
#define RECSYS_UNROLL _Pragma("GCC unroll 16")
#define RECSYS_INLINE inline __attribute__((always_inline))

namespace recsys::cpu::RECSYS_ISA {

constexpr int kVectorBytes = RECSYS_VECTOR_BYTES;
constexpr int kCacheLine = 64;

struct BFloat16 {
  uint16_t bits;
};

template <typename T, int kBytes>
struct VectorOfBytes {
  typedef T type __attribute__((vector_size(kBytes)));
};

// Full vector of float, double or an integer type.
template <typename T>
using Vector = typename VectorOfBytes<T, kVectorBytes>::type;

template <typename T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// What values of a storage type are computed in.
template <typename Stored>
struct ComputeType {
  using type = float;
};
template <>
struct ComputeType<double> {
  using type = double;
};
template <typename Stored>
using Compute = typename ComputeType<Stored>::type;

// Calls body(Stored{}) with the storage type of a dtype.
template <typename Body>
RECSYS_INLINE void with_stored(Dtype dtype, const Body& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(float{});
    case Dtype::kBFloat16:
      return body(BFloat16{});
    case Dtype::kFloat64:
      return body(double{});
    case Dtype::kFloat16:
      return;  // refused by the ops
  }
}

// Elements of a storage type that fill one vector once they are converted.
template <typename Stored>
constexpr int kStep = kLanes<Compute<Stored>>;

// A storage type as the elements of a vector in memory.
template <typename Stored>
struct PackedType {
  using element = uint16_t;
};
template <>
struct PackedType<float> {
  using element = float;
};
template <>
struct PackedType<double> {
  using element = double;
};
template <typename Stored>
using Packed = typename VectorOfBytes<typename PackedType<Stored>::element,
                                      kStep<Stored>* static_cast<int>(sizeof(Stored))>::type;

#if defined(__AVX512F__)
// The intrinsics without a mask make GCC 12 warn of an uninitialised value in its own header.
constexpr __mmask16 kAllLanes = 0xffff;
#endif

// ---- Conversions --------------------------------------------------------------------------------

inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(BFloat16 value) { return float_of_bits(uint32_t{value.bits} << 16); }

inline void narrow(float value, float& result) { result = value; }
inline void narrow(double value, double& result) { result = value; }

// Rounds to nearest, ties to even; a NaN stays one.
inline void narrow(float value, BFloat16& result) {
  const uint32_t bits = bits_of_float(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = is_nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  result.bits = static_cast<uint16_t>(rounded >> 16);
}

// The same for a vector; the last parameter names the storage type.

inline Vector<float> widen(Packed<float> values, float) { return values; }
inline Vector<double> widen(Packed<double> values, double) { return values; }

inline Vector<float> widen(Packed<BFloat16> values, BFloat16) {
  return (Vector<float>)(__builtin_convertvector(values, Vector<uint32_t>) << 16);
}

inline Packed<float> narrow(Vector<float> values, float) { return values; }
inline Packed<double> narrow(Vector<double> values, double) { return values; }

inline Packed<BFloat16> narrow(Vector<float> values, BFloat16) {
  using Bits = Vector<uint32_t>;
  const Bits bits = (Bits)values;
  const Bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  const Bits is_nan = (Bits)((bits & 0x7fffffffu) > 0x7f800000u);
  const Bits result = (is_nan & (bits | 0x400000u)) | (~is_nan & rounded);
  return __builtin_convertvector(result >> 16, Packed<BFloat16>);
}

// ---- Memory -------------------------------------------------------------------------------------

// Reads kStep values, converted; any alignment.
template <typename Stored>
inline Vector<Compute<Stored>> load(const Stored* from) {
  Packed<Stored> values;
  memcpy(&values, from, sizeof(values));
  return widen(values, Stored{});
}

// Writes kStep values, converted; any alignment.
template <typename Stored>
inline void store(Stored* to, Vector<Compute<Stored>> values) {
  const Packed<Stored> packed = narrow(values, Stored{});
  memcpy(to, &packed, sizeof(packed));
}

// Reads the first `count` < kStep values and zeros for the others.
template <typename Stored>
inline Vector<Compute<Stored>> load_partial(const Stored* from, int count) {
  Vector<Compute<Stored>> result = {};
  for (int lane = 0; lane < count; ++lane) result[lane] = widen(from[lane]);
  return result;
}

template <typename Stored>
inline void store_partial(Stored* to, Vector<Compute<Stored>> values, int count) {
  for (int lane = 0; lane < count; ++lane) narrow(values[lane], to[lane]);
}

// store() past the caches, for results larger than they are. `to` must be a multiple of the packed
// size; end with stream_fence() before another thread may read.
template <typename Stored>
inline void stream(Stored* to, Vector<Compute<Stored>> values) {
  const Packed<Stored> packed = narrow(values, Stored{});
#if defined(__AVX512F__)
  if constexpr (sizeof(packed) == 64) {
    _mm512_stream_si512((__m512i*)to, (__m512i)packed);
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(packed) == 32) {
    _mm256_stream_si256((__m256i*)to, (__m256i)packed);
    return;
  }
#endif
#if defined(__SSE2__)
  if constexpr (sizeof(packed) == 16) {
    _mm_stream_si128((__m128i*)to, (__m128i)packed);
    return;
  }
#endif
  memcpy(to, &packed, sizeof(packed));
}

inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

inline void prefetch(const void* from, int64_t bytes) {
  for (int64_t k = 0; k < bytes; k += kCacheLine) {
    __builtin_prefetch(static_cast<const char*>(from) + k);
  }
  // GCC drops calls of functions that do nothing but prefetch: it takes them to have no effect.
  asm volatile("");
}

// ---- Lanes --------------------------------------------------------------------------------------

template <typename T, int... kIndex>
inline Vector<T> shuffle(Vector<T> a, Vector<T> b, std::integer_sequence<int, kIndex...>) {
  return __builtin_shufflevector(a, b, kIndex...);
}

template <typename T>
using LaneSequence = std::make_integer_sequence<int, kLanes<T>>;

template <int kDistance, int... kLane>
constexpr auto swapped_lanes(std::integer_sequence<int, kLane...>) {
  return std::integer_sequence<int, (kLane ^ kDistance)...>{};
}

// Sum of all lanes, as a tree.
template <typename T, int kDistance = kLanes<T> / 2>
inline T sum_of_lanes(Vector<T> values) {
  if constexpr (kDistance == 0) {
    return values[0];
  } else {
    const auto order = swapped_lanes<kDistance>(LaneSequence<T>{});
    return sum_of_lanes<T, kDistance / 2>(values + shuffle<T>(values, values, order));
  }
}

inline float sum(Vector<float> values) { return sum_of_lanes<float>(values); }
inline double sum(Vector<double> values) { return sum_of_lanes<double>(values); }

// All lanes equal to `value`, its sign of zero included.
template <typename T>
inline Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

// {0, 1, 2, ...}
template <typename T, int... kLane>
constexpr Vector<T> lane_numbers(std::integer_sequence<int, kLane...>) {
  return Vector<T>{static_cast<T>(kLane)...};
}

// Lane l of the first result is a[l], or b[l - kDistance] where l has the bit kDistance; the second
// result has the other half: 2x2 blocks of a and b change places.
template <typename T, int kDistance, int... kLane>
RECSYS_INLINE void exchange(Vector<T>& a, Vector<T>& b, std::integer_sequence<int, kLane...>) {
  constexpr int kNumLanes = kLanes<T>;
  const Vector<T> first =
      __builtin_shufflevector(a, b, (kLane & kDistance ? kNumLanes + kLane - kDistance : kLane)...);
  b = __builtin_shufflevector(a, b, (kLane & kDistance ? kNumLanes + kLane : kLane + kDistance)...);
  a = first;
}

// Transposes a square of kLanes x kLanes in place.
template <typename T, int kDistance = kLanes<T> / 2>
RECSYS_INLINE void transpose(Vector<T> (&rows)[kLanes<T>]) {
  if constexpr (kDistance > 0) {
    RECSYS_UNROLL for (int k = 0; k < kLanes<T>; ++k) {
      if ((k & kDistance) == 0) {
        exchange<T, kDistance>(rows[k], rows[k + kDistance], LaneSequence<T>{});
      }
    }
    transpose<T, kDistance / 2>(rows);
  }
}

// Of each lane `factor` where its byte is at least `levels`, else 0. Reads kLanes bytes.
template <typename T>
inline Vector<T> kept_factors(const uint8_t* draws, T levels, T factor) {
  typename VectorOfBytes<uint8_t, kLanes<T>>::type bytes;
  memcpy(&bytes, draws, sizeof(bytes));
  return __builtin_convertvector(bytes, Vector<T>) >= levels ? broadcast(factor) : Vector<T>{};
}

inline Vector<float> square_root(Vector<float> values) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_maskz_sqrt_ps(kAllLanes, (__m512)values);
#elif defined(__AVX2__)
  return (Vector<float>)_mm256_sqrt_ps((__m256)values);
#else
  for (int lane = 0; lane < kLanes<float>; ++lane) values[lane] = __builtin_sqrtf(values[lane]);
  return values;
#endif
}

}  // namespace recsys::cpu::RECSYS_ISA
