// SPDX-License-Identifier: Apache-2.0
// The steps of the row parser with AVX2: four integers at a time, as in row_parser_avx512.h.

#pragma once

#include "row_parser.h"

#ifdef CLICKS_X86
#define CLICKS_AVX2 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))

namespace clicks {

struct Avx2Steps : PortableSteps {
  static bool are_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
  }

  CLICKS_AVX2 static inline bool parse_numericals(const uint8_t* text, const uint32_t* ends,
                                                  int32_t* values, uint64_t& present) {
    constexpr int kLanes = 4, kPadded = (kNumericals + kLanes - 1) / kLanes * kLanes;
    alignas(32) uint64_t raw[kPadded] = {}, bits[kPadded] = {};
    alignas(16) int32_t numbers[kPadded];
    uint32_t mask = 0, longest = 0;
    for (int c = 0; c < kNumericals; ++c) {
      const uint32_t begin = ends[c] + 1;  // 0 without a label in the first row
      const uint32_t length = ends[c + 1] - begin;
      raw[c] = load64(text + begin);
      bits[c] = 8 * uint64_t{length};
      longest = std::max(longest, length);
      mask |= static_cast<uint32_t>(length != 0) << c;
    }
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const __m256i nines = _mm256_set1_epi8(9);
    __m256i valid = _mm256_set1_epi8(-1), signs_alone = _mm256_setzero_si256();
    for (int first = 0; first < kPadded; first += kLanes) {
      const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(raw + first));
      const __m256i length = _mm256_load_si256(reinterpret_cast<const __m256i*>(bits + first));
      const __m256i shift = _mm256_sub_epi64(_mm256_set1_epi64x(64), length);
      const __m256i first_byte = _mm256_and_si256(bytes, _mm256_set1_epi64x(0xff));
      const __m256i negative = _mm256_cmpeq_epi64(first_byte, _mm256_set1_epi64x('-'));
      const __m256i one_byte = _mm256_cmpeq_epi64(length, _mm256_set1_epi64x(8));
      signs_alone = _mm256_or_si256(signs_alone, _mm256_and_si256(one_byte, negative));
      const __m256i zeros = _mm256_srlv_epi64(_mm256_set1_epi8('0'), length);
      const __m256i sign = _mm256_sllv_epi64(_mm256_set1_epi64x('-' ^ '0'), shift);
      const __m256i aligned =
          _mm256_xor_si256(_mm256_or_si256(_mm256_sllv_epi64(bytes, shift), zeros),
                           _mm256_and_si256(sign, negative));
      const __m256i digits = _mm256_sub_epi8(aligned, _mm256_set1_epi8('0'));
      valid = _mm256_and_si256(valid, _mm256_cmpeq_epi8(_mm256_max_epu8(digits, nines), nines));
      const __m256i pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010a));
      const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x00010064));
      const __m256i upper = _mm256_mul_epu32(fours, _mm256_set1_epi64x(10000));
      const __m256i value = _mm256_add_epi64(upper, _mm256_srli_epi64(fours, 32));
      const __m256i with_sign = _mm256_sub_epi64(_mm256_xor_si256(value, negative), negative);
      const __m256i packed = _mm256_permutevar8x32_epi32(with_sign, even);
      _mm_store_si128(reinterpret_cast<__m128i*>(numbers + first), _mm256_castsi256_si128(packed));
    }
    if (__builtin_expect(longest > 8 || !_mm256_testz_si256(signs_alone, signs_alone), 0)) {
      return PortableSteps::parse_numericals(text, ends, values, present);
    }
    std::memcpy(values, numbers, kNumericals * sizeof(int32_t));
    present = mask;
    return _mm256_movemask_epi8(valid) == -1;
  }
};

}  // namespace clicks
#endif
