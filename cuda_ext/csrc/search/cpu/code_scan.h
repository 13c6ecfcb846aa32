// SPDX-License-Identifier: Apache-2.0
// Upper bounds of the products of 8-bit rows with a query: sums of integers down the lanes.
#pragma once

#include "../../cpu/vector.h"
#include "../top_rows_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

using Sums = Vector<int32_t>;
using Pairs = Vector<int16_t>;

// Vectors of rows that are summed together, so that an element of the query is loaded only once.
constexpr int kScanned = kVectorBytes == 16 ? 4 : static_cast<int>(kSearchBlock) / kLanes<int32_t>;
constexpr int kScannedRows = kScanned * kLanes<int32_t>;

// Adds the products of pairs of 16-bit numbers, exactly.
RECSYS_INLINE Sums sum_pairs(Pairs a, Pairs b) {
#if defined(__AVX512BW__)
  return (Sums)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Sums)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Sums)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  Sums result;
  for (int lane = 0; lane < kLanes<int32_t>; ++lane) {
    result[lane] = a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1];
  }
  return result;
#endif
}

// A bit for each lane of `a` that is not below that of `b`; a NaN is not below anything.
RECSYS_INLINE uint32_t bits_not_below(Vector<float> a, Vector<float> b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLT_UQ);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(
      _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLT_UQ)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpnlt_ps((__m128)a, (__m128)b)));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kLanes<float>; ++lane) bits |= uint32_t{!(a[lane] < b[lane])} << lane;
  return bits;
#endif
}

// Two products of 16 bits: those of even and of odd columns.
struct PairDigits {
  static void pack(const int16_t* levels, uint32_t* digits) {
    for (int odd = 0; odd < 2; ++odd) {
      digits[odd] = static_cast<uint16_t>(levels[odd]) |
                    uint32_t{static_cast<uint16_t>(levels[odd + 2])} << 16;
    }
  }

  RECSYS_INLINE static void add(Sums& sums, Sums&, Vector<uint16_t> codes, Sums even, Sums odd) {
    sums += sum_pairs((Pairs)(codes & 0xff), (Pairs)even);
    sums += sum_pairs((Pairs)(codes >> 8), (Pairs)odd);
  }

  RECSYS_INLINE static Sums total(Sums sums, Sums) { return sums; }
};

#if defined(__AVX512BW__)
// Two products of 8 bits, with the low and the high digit of a level to the base of 128.
struct VnniDigits {
  static constexpr int kBase = 128;

  static void pack(const int16_t* levels, uint32_t* digits) {
    digits[0] = digits[1] = 0;
    for (int column = 0; column < 4; ++column) {
      const int low = ((levels[column] + kBase / 2) & (kBase - 1)) - kBase / 2;
      const int high = (levels[column] - low) / kBase;
      digits[0] |= uint32_t{static_cast<uint8_t>(low)} << 8 * column;
      digits[1] |= uint32_t{static_cast<uint8_t>(high)} << 8 * column;
    }
  }

  // In assembly: the rest of this file must also run on CPUs without VNNI.
  RECSYS_INLINE static void add(Sums& sums, Sums& high_sums, Vector<uint16_t> codes, Sums low,
                                Sums high) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(low));
    asm("vpdpbusd %2, %1, %0" : "+v"(high_sums) : "v"(codes), "v"(high));
  }

  RECSYS_INLINE static Sums total(Sums sums, Sums high_sums) { return sums + high_sums * kBase; }
};

inline bool has_vnni() { return __builtin_cpu_supports("avx512vnni"); }
#endif

template <typename Digits>
inline int64_t scan_blocks(const ScanRows& rows, const ScanQuery& query, int64_t begin, int64_t end,
                           float threshold, int32_t* candidates) {
  constexpr int kLanesOfRows = kLanes<int32_t>;
  const int64_t block_bytes = rows.column_groups * kSearchBlock * 4;
  int64_t num_candidates = 0;
  for (int64_t row = begin * kSearchBlock; row < end * kSearchBlock; row += kScannedRows) {
    const uint8_t* codes = rows.codes + row / kSearchBlock * block_bytes + row % kSearchBlock * 4;
    Sums sums[kScanned], more_sums[kScanned];
    RECSYS_UNROLL for (int k = 0; k < kScanned; ++k) {
      sums[k] = query.correction - Sums{};
      more_sums[k] = Sums{};
    }
    for (int64_t group = 0; group < rows.column_groups; ++group, codes += kSearchBlock * 4) {
      const Sums first = static_cast<int32_t>(query.digits[2 * group]) - Sums{};
      const Sums second = static_cast<int32_t>(query.digits[2 * group + 1]) - Sums{};
      RECSYS_UNROLL for (int k = 0; k < kScanned; ++k) {
        Vector<uint16_t> of_rows;
        memcpy(&of_rows, codes + k * kVectorBytes, sizeof(of_rows));
        Digits::add(sums[k], more_sums[k], of_rows, first, second);
      }
    }
    RECSYS_UNROLL for (int k = 0; k < kScanned; ++k) {
      const int64_t first_row = row + k * kLanesOfRows;
      const Vector<float> total =
          __builtin_convertvector(Digits::total(sums[k], more_sums[k]), Vector<float>);
      const Vector<float> bound =
          load(rows.scales + first_row) * (total * query.step + query.slack) +
          load(rows.biases + first_row);
      uint32_t bits = bits_not_below(bound, broadcast(threshold));
      for (; bits != 0; bits &= bits - 1) {
        const int64_t candidate = first_row + __builtin_ctz(bits) - begin * kSearchBlock;
        candidates[num_candidates++] = static_cast<int32_t>(candidate);
      }
    }
  }
  return num_candidates;
}

template <typename Digits>
inline void pack_all(const int16_t* levels, int64_t column_groups, uint32_t* digits) {
  for (int64_t group = 0; group < column_groups; ++group) {
    Digits::pack(levels + 4 * group, digits + 2 * group);
  }
}

inline void pack_digits(const int16_t* levels, int64_t column_groups, uint32_t* digits) {
#if defined(__AVX512BW__)
  if (has_vnni()) return pack_all<VnniDigits>(levels, column_groups, digits);
#endif
  pack_all<PairDigits>(levels, column_groups, digits);
}

inline int64_t scan(const ScanRows& rows, const ScanQuery& query, int64_t begin, int64_t end,
                    float threshold, int32_t* candidates) {
#if defined(__AVX512BW__)
  if (has_vnni()) return scan_blocks<VnniDigits>(rows, query, begin, end, threshold, candidates);
#endif
  return scan_blocks<PairDigits>(rows, query, begin, end, threshold, candidates);
}

}  // namespace recsys::cpu::RECSYS_ISA
