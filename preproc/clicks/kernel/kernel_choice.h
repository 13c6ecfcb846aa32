// SPDX-License-Identifier: Apache-2.0
// The kernel's inner loops, compiled for several kinds of processor, and the choice among them.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "row_parser.h"
#include "row_parser_avx2.h"
#include "row_parser_avx512.h"

namespace clicks {

struct Kernels {
  uint32_t (*split_rows)(const uint8_t* text, uint32_t size, const RowFormat& format,
                         uint64_t& line, FieldEnds& fields, std::vector<RejectedRow>& rejected);
  bool (*parse_rows)(const uint8_t* text, const FieldEnds& fields, const RowFormat& format,
                     RowBatch& batch, uint8_t* rejected);
  void (*hash_categories)(const uint32_t* categories, int count, uint32_t* keys);
};

// The finaliser of MurmurHash3, which is a bijection of 32 bits.
CLICKS_INLINE uint32_t key_of_category(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

CLICKS_INLINE void hash_categories(const uint32_t* categories, int count, uint32_t* keys) {
  for (int i = 0; i < count; ++i) keys[i] = key_of_category(categories[i]);
}

// The templates, compiled with the instructions that `target` allows. A template has no target, so
// the steps of a processor cannot be inlined into it; flatten inlines both into these functions.
#define CLICKS_DEFINE_KERNELS(Name, name, Steps, target)                                      \
  target __attribute__((flatten)) inline uint32_t split_rows_##name(                          \
      const uint8_t* text, uint32_t size, const RowFormat& format, uint64_t& line,            \
      FieldEnds& fields, std::vector<RejectedRow>& rejected) {                                \
    return split_rows<Steps>(text, size, format, line, fields, rejected);                     \
  }                                                                                           \
  target __attribute__((flatten)) inline bool parse_rows_##name(                              \
      const uint8_t* text, const FieldEnds& fields, const RowFormat& format, RowBatch& batch, \
      uint8_t* rejected) {                                                                    \
    return parse_rows<Steps>(text, fields, format, batch, rejected);                          \
  }                                                                                           \
  target inline void hash_categories_##name(const uint32_t* categories, int count,            \
                                            uint32_t* keys) {                                 \
    hash_categories(categories, count, keys);                                                 \
  }                                                                                           \
  constexpr Kernels k##Name = {split_rows_##name, parse_rows_##name, hash_categories_##name};

CLICKS_DEFINE_KERNELS(Portable, portable, PortableSteps, )
#ifdef CLICKS_X86
CLICKS_DEFINE_KERNELS(Avx2, avx2, Avx2Steps, CLICKS_AVX2)
#endif
#ifdef CLICKS_HAS_AVX512
CLICKS_DEFINE_KERNELS(Avx512, avx512, Avx512Steps, CLICKS_AVX512)
#endif
#undef CLICKS_DEFINE_KERNELS

// Returns the best kernels that this processor runs. RECSYS_CPU_KERNELS=portable or avx2 chooses
// lower ones, for tests and bug reports.
inline const Kernels& choose_kernels() {
  const char* const wanted = std::getenv("RECSYS_CPU_KERNELS");
  const std::string_view most = wanted == nullptr ? "" : wanted;
  if (most == "portable") return kPortable;
#ifdef CLICKS_HAS_AVX512
  if (most != "avx2" && Avx512Steps::are_supported()) return kAvx512;
#endif
#ifdef CLICKS_X86
  if (Avx2Steps::are_supported()) return kAvx2;
#endif
  return kPortable;
}

inline const Kernels& kernels() {
  static const Kernels& chosen = choose_kernels();
  return chosen;
}

}  // namespace clicks
