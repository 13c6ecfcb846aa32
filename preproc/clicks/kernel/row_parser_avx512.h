// SPDX-License-Identifier: Apache-2.0
// The steps of the row parser with AVX-512: 64 bytes of text, or eight fields, at a time.
//
// A field is loaded into 8 bytes and shifted, so that its last character is the last byte and the
// bytes before its first are '0'. A table or a subtraction turns characters into digits, and the
// dot product instructions combine pairs of digits.

#pragma once

#include "row_parser.h"

// CLICKS_WITHOUT_AVX512 leaves this out, so that tests run the AVX2 code on a processor with both.
#if defined(CLICKS_X86) && !defined(CLICKS_WITHOUT_AVX512)
#define CLICKS_HAS_AVX512 1
#define CLICKS_AVX512 \
  __attribute__((     \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")))

// GCC 12 mistakes the results of some AVX-512 intrinsics for uninitialised values.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace clicks {

constexpr int kFieldsPerVector = 8;

struct alignas(64) ByteTable {
  uint8_t bytes[128];
};

constexpr ByteTable make_byte_numbers() {
  ByteTable table{};
  for (int i = 0; i < 64; ++i) table.bytes[i] = static_cast<uint8_t>(i);
  return table;
}

// The value of each hexadecimal digit; 0x80 for every other character below 0x80.
constexpr ByteTable make_hex_digits() {
  ByteTable table{};
  for (int i = 0; i < 128; ++i) table.bytes[i] = 0x80;
  for (int i = 0; i < 10; ++i) table.bytes['0' + i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 6; ++i) {
    table.bytes['a' + i] = table.bytes['A' + i] = static_cast<uint8_t>(10 + i);
  }
  return table;
}

// Byte b of the number of field i, from the pairs of digits in lane i: the last pair is the lowest.
constexpr ByteTable make_pair_order() {
  ByteTable table{};
  for (int i = 0; i < kFieldsPerVector; ++i) {
    for (int b = 0; b < 4; ++b) table.bytes[4 * i + b] = static_cast<uint8_t>(8 * i + 6 - 2 * b);
  }
  return table;
}

constexpr ByteTable kByteNumbers = make_byte_numbers();
constexpr ByteTable kHexDigits = make_hex_digits();
constexpr ByteTable kPairOrder = make_pair_order();

struct Avx512Steps {
  typedef uint64_t Words __attribute__((vector_size(64)));
  typedef int64_t Numbers __attribute__((vector_size(64)));

  static bool are_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("bmi2");
  }

  CLICKS_AVX512 static inline ChunkMasks chunk_masks(const uint8_t* p, uint8_t delimiter) {
    const __m512i bytes = _mm512_loadu_si512(p);
    const uint64_t tabs =
        _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(static_cast<char>(delimiter)));
    const uint64_t feeds = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\n'));
    return {tabs | feeds, feeds};
  }

  // Writes whole vectors, so up to 32 elements more than there are bits.
  CLICKS_AVX512 static inline uint32_t* append_positions(uint64_t bits, uint32_t base,
                                                         uint32_t* out) {
    const __m512i numbers = _mm512_load_si512(kByteNumbers.bytes);
    const __m512i packed = _mm512_maskz_compress_epi8(bits, numbers);
    const int count = __builtin_popcountll(bits);
    store_positions(_mm512_castsi512_si128(packed), base, out);
    if (count > 16) {
      store_positions(_mm512_extracti32x4_epi32(packed, 1), base, out + 16);
      if (count > 32) {
        store_positions(_mm512_extracti32x4_epi32(packed, 2), base, out + 32);
        store_positions(_mm512_extracti32x4_epi32(packed, 3), base, out + 48);
      }
    }
    return out + count;
  }

  CLICKS_AVX512 static inline bool parse_numericals(const uint8_t* text, const uint32_t* ends,
                                                    int32_t* values, uint64_t& present) {
    __mmask64 invalid = 0;
    uint32_t mask = 0;
    for (int first = 0; first < kNumericals; first += kFieldsPerVector) {
      const Fields fields = load_fields(text, ends + first, kNumericals - first);
      const __m512i first_byte = _mm512_and_si512(fields.raw, _mm512_set1_epi64(0xff));
      const __mmask8 negative = _mm512_cmpeq_epi64_mask(first_byte, _mm512_set1_epi64('-'));
      const __mmask8 is_long = _mm256_cmpgt_epu32_mask(fields.lengths, _mm256_set1_epi32(8));
      const __mmask8 one_byte = _mm256_cmpeq_epi32_mask(fields.lengths, _mm256_set1_epi32(1));
      if (__builtin_expect((is_long | (one_byte & negative)) != 0, 0)) {
        return PortableSteps::parse_numericals(text, ends, values, present);
      }
      mask |= present_bits(fields) << first;
      const __m512i sign = _mm512_sllv_epi64(_mm512_set1_epi64('-' ^ '0'), fields.shift);
      const __m512i aligned = _mm512_mask_xor_epi64(fields.aligned, negative, fields.aligned, sign);
      const __m512i digits = _mm512_sub_epi8(aligned, _mm512_set1_epi8('0'));
      invalid |= _mm512_cmpgt_epu8_mask(digits, _mm512_set1_epi8(9));
      const __m512i pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
      const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00010064));
      const __m512i upper = _mm512_mul_epu32(fours, _mm512_set1_epi64(10000));
      const __m512i value = _mm512_add_epi64(upper, _mm512_srli_epi64(fours, 32));
      const __m512i with_sign =
          _mm512_mask_sub_epi64(value, negative, _mm512_setzero_si512(), value);
      _mm256_mask_storeu_epi32(values + first, fields.lanes, _mm512_cvtepi64_epi32(with_sign));
    }
    present = mask;
    return invalid == 0;
  }

  CLICKS_AVX512 static inline bool parse_categoricals(const uint8_t* text, const uint32_t* ends,
                                                      uint32_t* values, uint32_t& present) {
    const __m512i below_64 = _mm512_load_si512(kHexDigits.bytes);
    const __m512i from_64 = _mm512_load_si512(kHexDigits.bytes + 64);
    const __m512i pair_order = _mm512_load_si512(kPairOrder.bytes);
    __m512i invalid = _mm512_setzero_si512();
    __m256i longest = _mm256_setzero_si256();
    uint32_t mask = 0;
    for (int first = 0; first < kCategoricals; first += kFieldsPerVector) {
      const Fields fields = load_fields(text, ends + first, kCategoricals - first);
      longest = _mm256_max_epu32(longest, fields.lengths);
      mask |= present_bits(fields) << first;
      const __m512i digits = _mm512_permutex2var_epi8(below_64, fields.aligned, from_64);
      invalid = _mm512_or_si512(invalid, _mm512_or_si512(digits, fields.aligned));
      const __m512i pairs = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x0110));
      const __m512i numbers = _mm512_permutexvar_epi8(pair_order, pairs);
      _mm256_mask_storeu_epi32(values + first, fields.lanes, _mm512_castsi512_si256(numbers));
    }
    present = mask;
    return _mm512_movepi8_mask(invalid) == 0 &&
           _mm256_cmpgt_epu32_mask(longest, _mm256_set1_epi32(8)) == 0;
  }

 private:
  struct Fields {
    __mmask8 lanes;
    __m256i lengths;
    __m512i raw;      // eight bytes of text from the first character of each field
    __m512i shift;    // 64 - 8 * length
    __m512i aligned;  // the field at the end of its lane, after '0' characters
  };

  CLICKS_AVX512 static inline Fields load_fields(const uint8_t* text, const uint32_t* ends,
                                                 int count) {
    Fields fields;
    fields.lanes = static_cast<__mmask8>(count < kFieldsPerVector ? (1 << count) - 1 : 0xff);
    const __m256i before = _mm256_maskz_loadu_epi32(fields.lanes, ends);
    const __m256i begin = _mm256_add_epi32(before, _mm256_set1_epi32(1));
    const __m256i end = _mm256_maskz_loadu_epi32(fields.lanes, ends + 1);
    fields.lengths = _mm256_maskz_sub_epi32(fields.lanes, end, begin);
    fields.raw = _mm512_mask_i32gather_epi64(_mm512_setzero_si512(), fields.lanes, begin, text, 1);
    const __m512i bits = _mm512_slli_epi64(_mm512_cvtepu32_epi64(fields.lengths), 3);
    fields.shift = _mm512_sub_epi64(_mm512_set1_epi64(64), bits);
    const __m512i zeros = _mm512_srlv_epi64(_mm512_set1_epi8('0'), bits);
    fields.aligned = _mm512_or_si512(_mm512_sllv_epi64(fields.raw, fields.shift), zeros);
    return fields;
  }

  CLICKS_AVX512 static inline uint32_t present_bits(const Fields& fields) {
    return _mm256_test_epi32_mask(fields.lengths, fields.lengths);
  }

  CLICKS_AVX512 static inline void store_positions(__m128i bytes, uint32_t base, uint32_t* out) {
    const __m512i offsets = _mm512_cvtepu8_epi32(bytes);
    _mm512_storeu_si512(out, _mm512_add_epi32(offsets, _mm512_set1_epi32(static_cast<int>(base))));
  }
};

}  // namespace clicks

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
