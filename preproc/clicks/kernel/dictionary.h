// SPDX-License-Identifier: Apache-2.0
// Lookup tables from categories to ids.

#pragma once

#include <cstdint>
#include <memory>

#include "kernel_choice.h"
#include "memory.h"
#include "wide_keys.h"

namespace clicks {

// Maps a category to its id; 0 if the category is not in the dictionary.
//
// A hash table whose buckets are cache lines. Nearly every lookup takes one bucket, whose
// categories are compared all at once, so that no branch depends on the category.
class Dictionary {
 public:
  // categories: in id order; the first has id 1.
  Dictionary(const uint32_t* categories, size_t count) : buckets_(buckets_for(count)) {
    for (size_t i = 0; i < count; ++i) {
      size_t number = bucket_of_key(key_of_category(categories[i]));
      while (buckets_[number].is_full()) number = after(number);
      Bucket& bucket = buckets_[number];
      int free = 0;
      while (bucket.ids[free] != 0) ++free;
      bucket.categories[free] = categories[i];
      bucket.ids[free] = static_cast<uint32_t>(i + 1);
    }
  }

  // Half full: one bucket in fifty is full, and its other categories are in the next one.
  static size_t buckets_for(size_t count) { return count / (kBucketSize / 2) + 1; }

  CLICKS_INLINE size_t bucket_of_key(uint32_t key) const {
    return static_cast<size_t>((key * static_cast<uint64_t>(buckets_.size())) >> 32);
  }
  CLICKS_INLINE void prefetch(size_t bucket) const { __builtin_prefetch(&buckets_[bucket], 0); }
  CLICKS_INLINE uint32_t find(uint32_t category, size_t bucket) const {
    uint32_t id = buckets_[bucket].find(category);
    while (buckets_[bucket].is_full() && id == 0) {  // the rare one first
      bucket = after(bucket);
      id = buckets_[bucket].find(category);
    }
    return id;
  }
  bool is_large() const { return buckets_.bytes() > (size_t{16} << 10); }

 private:
  static constexpr int kBucketSize = 8;

  // Categories come before free slots, whose category and id are 0.
  struct alignas(64) Bucket {
    uint32_t categories[kBucketSize];
    uint32_t ids[kBucketSize];

    bool is_full() const { return ids[kBucketSize - 1] != 0; }

    // Category 0 also equals free slots, but its own slot comes before them.
    CLICKS_INLINE uint32_t find(uint32_t category) const {
#ifdef CLICKS_X86
      const __m128i wanted = _mm_set1_epi32(static_cast<int>(category));
      const auto* stored = reinterpret_cast<const __m128i*>(categories);
      const __m128i low = _mm_cmpeq_epi32(_mm_load_si128(stored), wanted);
      const __m128i high = _mm_cmpeq_epi32(_mm_load_si128(stored + 1), wanted);
      const __m128i equal = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
      const auto mask = static_cast<uint32_t>(_mm_movemask_epi8(equal));
#else
      uint32_t mask = 0;
      for (int i = 0; i < kBucketSize; ++i) {
        mask |= static_cast<uint32_t>(categories[i] == category) << i;
      }
#endif
      const uint32_t id = ids[__builtin_ctz(mask | 1u << (kBucketSize - 1))];
      return id & (0 - static_cast<uint32_t>(mask != 0));
    }
  };

  size_t after(size_t bucket) const { return bucket + 1 == buckets_.size() ? 0 : bucket + 1; }

  Pages<Bucket> buckets_;
};

// Maps a wide key to its id; 0 if the key is not in the dictionary. Long keys stay in the mapped
// files.
class WideDictionary {
 public:
  WideDictionary(const WideKeys& keys, size_t count) {
    while ((size_t{1} << log2_) < 2 * count) ++log2_;  // half full at most
    slots_ = Pages<WideKey>(size_t{1} << log2_);
    for (size_t i = 0; i < count; ++i) {
      WideKey key = keys.at(i);
      key.value = static_cast<uint32_t>(i + 1);
      size_t slot = slot_of(key);
      while (!slots_[slot].is_free()) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = key;
    }
  }

  void prefetch(const WideKey& key) const { __builtin_prefetch(&slots_[slot_of(key)], 0); }
  uint32_t find(const WideKey& key) const {
    for (size_t slot = slot_of(key);; slot = (slot + 1) & (slots_.size() - 1)) {
      const WideKey& found = slots_[slot];
      if (found.is_free() || found.is(key)) return found.value;
    }
  }

 private:
  size_t slot_of(const WideKey& key) const { return key.hash >> (64 - log2_); }

  int log2_ = 1;
  Pages<WideKey> slots_;
};

// The dictionary of a column: one of the two.
struct ColumnDictionary {
  std::unique_ptr<const Dictionary> narrow;
  std::unique_ptr<const WideDictionary> wide;
};

}  // namespace clicks
