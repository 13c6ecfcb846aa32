// SPDX-License-Identifier: Apache-2.0
// SIMD vectors over the vector extensions of GCC and Clang, at the width of one instruction set.
//
// The CPU kernels are compiled once per instruction set. Set before including this header:
//   RECSYS_ISA           the namespace of everything compiled here, e.g. avx2
//   RECSYS_VECTOR_BYTES  16, 32 or 64
// Kernel headers stay in that namespace and call no inline function of the standard library: the
// linker keeps only one copy of an inline function, perhaps one that this CPU cannot run.
#pragma once

#if !defined(RECSYS_ISA) || !defined(RECSYS_VECTOR_BYTES)
#error "set RECSYS_ISA and RECSYS_VECTOR_BYTES before the kernels are included"
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>  // index_sequence: a type, no code

#include "../dtypes.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

// Arrays of vectors stay in registers only if GCC unrolls the loops over them and inlines the
// functions that take them.
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

// Full vector of float or an integer type.
template <typename T>
using Vector = typename VectorOfBytes<T, kVectorBytes>::type;

template <typename T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

// Calls body(Stored{}) with the storage type of a dtype; the ops refuse float16.
template <typename Body>
RECSYS_INLINE void with_stored(Dtype dtype, const Body& body) {
  if (dtype == Dtype::kBFloat16) return body(BFloat16{});
  body(float{});
}

// Calls body with an object of each type.
template <typename Body>
RECSYS_INLINE void with_stored(Dtype first, Dtype second, const Body& body) {
  with_stored(first, [&](auto one) { with_stored(second, [&](auto other) { body(one, other); }); });
}

// As many stored numbers as fill a vector of float after conversion.
template <typename Stored>
using Packed = typename VectorOfBytes<std::conditional_t<sizeof(Stored) == 4, float, uint16_t>,
                                      kLanes<float>* static_cast<int>(sizeof(Stored))>::type;

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
inline float widen(BFloat16 value) { return float_of_bits(uint32_t{value.bits} << 16); }

inline void narrow(float value, float& result) { result = value; }

// Rounds to nearest, ties to even; keeps NaN.
inline void narrow(float value, BFloat16& result) {
  const uint32_t bits = bits_of_float(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  const uint32_t rounded = is_nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  result.bits = static_cast<uint16_t>(rounded >> 16);
}

// The same for a vector; the last parameter names the storage type.

inline Vector<float> widen(Packed<float> values, float) { return values; }

inline Vector<float> widen(Packed<BFloat16> values, BFloat16) {
  return (Vector<float>)(__builtin_convertvector(values, Vector<uint32_t>) << 16);
}

inline Packed<float> narrow(Vector<float> values, float) { return values; }

inline Packed<BFloat16> narrow(Vector<float> values, BFloat16) {
  using Bits = Vector<uint32_t>;
  const Bits bits = (Bits)values;
  const Bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  const Bits is_nan = (Bits)((bits & 0x7fffffffu) > 0x7f800000u);
  const Bits result = (is_nan & (bits | 0x400000u)) | (~is_nan & rounded);
  return __builtin_convertvector(result >> 16, Packed<BFloat16>);
}

// ---- Memory -------------------------------------------------------------------------------------

// Reads a vector of values, converted; any alignment.
template <typename Stored>
inline Vector<float> load(const Stored* from) {
  Packed<Stored> values;
  memcpy(&values, from, sizeof(values));
  return widen(values, Stored{});
}

// Writes a vector of values, converted; any alignment.
template <typename Stored>
inline void store(Stored* to, Vector<float> values) {
  const Packed<Stored> packed = narrow(values, Stored{});
  memcpy(to, &packed, sizeof(packed));
}

// Reads the first `count` values, fewer than a vector, and zeros for the others.
template <typename Stored>
inline Vector<float> load_partial(const Stored* from, int count) {
  Vector<float> result = {};
  for (int lane = 0; lane < count; ++lane) result[lane] = widen(from[lane]);
  return result;
}

template <typename Stored>
inline void store_partial(Stored* to, Vector<float> values, int count) {
  for (int lane = 0; lane < count; ++lane) narrow(values[lane], to[lane]);
}

// store() past the caches, for results larger than they are. `to` must be a multiple of the packed
// size; end with stream_fence() before another thread may read.
template <typename Stored>
inline void stream(Stored* to, Vector<float> values) {
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
  // GCC drops calls of functions that only prefetch: it assumes that they have no effect.
  asm volatile("");
}

// ---- Lanes --------------------------------------------------------------------------------------

using LaneSequence = std::make_integer_sequence<int, kLanes<float>>;

template <int kDistance, int... kLane>
inline Vector<float> swap_lanes(Vector<float> a, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, a, (kLane ^ kDistance)...);
}

// Sum of all lanes, as a tree.
template <int kDistance = kLanes<float> / 2>
inline float sum(Vector<float> values) {
  if constexpr (kDistance == 0) {
    return values[0];
  } else {
    return sum<kDistance / 2>(values + swap_lanes<kDistance>(values, LaneSequence{}));
  }
}

// All lanes equal to `value`, its sign of zero included.
template <typename T>
inline Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

// {0, 1, 2, ...}
template <int... kLane>
constexpr Vector<float> lane_numbers(std::integer_sequence<int, kLane...>) {
  return Vector<float>{static_cast<float>(kLane)...};
}

// Lane l of the first result is a[l], or b[l - kDistance] where l has the bit kDistance; the second
// result has the other half: 2x2 blocks of a and b change places.
template <int kDistance, int... kLane>
RECSYS_INLINE void exchange(Vector<float>& a, Vector<float>& b,
                            std::integer_sequence<int, kLane...>) {
  constexpr int kNumLanes = kLanes<float>;
  const Vector<float> first =
      __builtin_shufflevector(a, b, (kLane & kDistance ? kNumLanes + kLane - kDistance : kLane)...);
  b = __builtin_shufflevector(a, b, (kLane & kDistance ? kNumLanes + kLane : kLane + kDistance)...);
  a = first;
}

// Transposes a square of lanes x lanes in place.
template <int kDistance = kLanes<float> / 2>
RECSYS_INLINE void transpose(Vector<float> (&rows)[kLanes<float>]) {
  if constexpr (kDistance > 0) {
    RECSYS_UNROLL for (int k = 0; k < kLanes<float>; ++k) {
      if ((k & kDistance) == 0) {
        exchange<kDistance>(rows[k], rows[k + kDistance], LaneSequence{});
      }
    }
    transpose<kDistance / 2>(rows);
  }
}

// Each lane is `factor` if its byte is at least `levels`, else 0. Reads as many bytes as lanes.
inline Vector<float> kept_factors(const uint8_t* draws, float levels, float factor) {
  typename VectorOfBytes<uint8_t, kLanes<float>>::type bytes;
  memcpy(&bytes, draws, sizeof(bytes));
  return __builtin_convertvector(bytes, Vector<float>) >= levels ? broadcast(factor)
                                                                 : Vector<float>{};
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
