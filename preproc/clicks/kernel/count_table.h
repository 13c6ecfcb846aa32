// SPDX-License-Identifier: Apache-2.0
// Counts categories in bounded memory.
//
// A category is stored under its key, a bijective hash of its 32 bits, and its slot is the top bits
// of that key. Slot order is then key order except inside small clusters, so a table becomes a
// sorted run in one pass without a full sort, and equal key ranges have about as many categories.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "id_columns.h"
#include "memory.h"

namespace clicks {

CLICKS_INLINE uint32_t category_of_key(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7ed1b41du;  // the inverses of the two factors modulo 2**32
  x = (x ^ (x >> 13) ^ (x >> 26)) * 0xa5cb9243u;
  return x ^ (x >> 16);
}

// One sorted run in a runs file: entries of (key << 32 | count), ascending.
struct Run {
  uint32_t column;
  uint64_t first_entry;  // from the start of the file
  uint64_t entries;
};

class CountTable {
 public:
  static constexpr int kInitialLog2 = 11;

  CountTable() : slots_(size_t{1} << kInitialLog2), log2_(kInitialLog2) {}

  static constexpr size_t initial_bytes() { return sizeof(uint64_t) << kInitialLog2; }
  size_t bytes() const { return slots_.bytes(); }
  bool has_room(size_t extra) const { return used_ + extra <= slots_.size() / 8 * 5; }

  // The table must have room for `count` new keys.
  void add(const uint32_t* keys, int count) {
    const int shift = 32 - log2_;
    const size_t mask = slots_.size() - 1;
    uint64_t* slots = slots_.data();
    constexpr int kAhead = 16;
    const int prefetched = log2_ >= 12 ? count : 0;  // the tables of all columns share the cache
    for (int i = 0; i < std::min(prefetched, kAhead); ++i) {
      __builtin_prefetch(&slots[keys[i] >> shift], 1);
    }
    for (int i = 0; i < count; ++i) {
      if (i + kAhead < prefetched) __builtin_prefetch(&slots[keys[i + kAhead] >> shift], 1);
      add_one(slots, mask, keys[i] >> shift, static_cast<uint64_t>(keys[i]) << 32, 1);
    }
  }

  // Doubles the number of slots.
  void grow() {
    Pages<uint64_t> old(std::move(slots_));
    slots_ = Pages<uint64_t>(old.size() * 2);
    ++log2_;
    used_ = 0;
    for (size_t i = 0; i < old.size(); ++i) {
      if (old[i] == 0) continue;
      const uint64_t key = old[i] & ~uint64_t{UINT32_MAX};
      add_one(slots_.data(), slots_.size() - 1, key >> (64 - log2_), key, old[i] - key);
    }
  }

  // Moves all entries to the front, sorted, and returns their number; only reset() may follow.
  size_t sort_in_place() {
    std::vector<uint64_t> wrapped;  // entries of the last slots that wrapped around to the start
    uint64_t* slots = slots_.data();
    size_t out = 0, cluster = 0;
    bool first_cluster = true;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const uint64_t entry = slots[i];
      if (entry == 0) {
        sort_cluster(slots + cluster, slots + out);
        cluster = out;
        first_cluster = false;
      } else if (first_cluster && (entry >> (64 - log2_)) > i) {
        wrapped.push_back(entry);
      } else {
        slots[out++] = entry;
      }
    }
    for (uint64_t entry : wrapped) slots[out++] = entry;
    sort_cluster(slots + cluster, slots + out);
    return out;
  }

  const uint64_t* data() const { return slots_.data(); }

  void reset() {
    slots_ = Pages<uint64_t>();
    slots_ = Pages<uint64_t>(size_t{1} << kInitialLog2);
    log2_ = kInitialLog2;
    used_ = 0;
  }

 private:
  CLICKS_INLINE void add_one(uint64_t* slots, size_t mask, size_t slot, uint64_t key,
                             uint64_t count) {
    for (;; slot = (slot + 1) & mask) {
      const uint64_t entry = slots[slot];
      if (entry == 0) {
        slots[slot] = key | count;
        ++used_;
        return;
      }
      if ((entry ^ key) <= UINT32_MAX) {
        slots[slot] = entry + count;
        return;
      }
    }
  }

  static void sort_cluster(uint64_t* begin, uint64_t* end) {
    if (end - begin > 32) {
      std::sort(begin, end);
      return;
    }
    for (uint64_t* i = begin + 1; i < end; ++i) {
      const uint64_t entry = *i;
      uint64_t* j = i;
      for (; j > begin && j[-1] > entry; --j) *j = j[-1];
      *j = entry;
    }
  }

  Pages<uint64_t> slots_;
  size_t used_ = 0;
  int log2_;
};

// The tables of all columns; when the budget is used up, they are written as sorted runs.
class CategoryCounts {
 public:
  CategoryCounts(const RowRule& rule, const RowFormat& format, size_t budget_bytes, int runs_fd)
      : columns_(rule, format),
        budget_(budget_bytes),
        runs_fd_(runs_fd),
        tables_(static_cast<size_t>(columns_.count())) {}

  // Counts the first rows of a batch.
  void add(const RowBatch& batch, int rows) {
    // A count has 32 bits in a run; a run ends before a count could overflow into the key.
    if (rows_since_spill_ > UINT32_MAX / 2) spill();
    rows_since_spill_ += static_cast<uint64_t>(rows);
    uint64_t present_everywhere = ~uint64_t{0};
    for (int r = 0; r < rows; ++r) present_everywhere &= batch.id_present[r];
    uint32_t categories[kBatchRows], keys[kBatchRows];
    for (int c = 0; c < columns_.count(); ++c) {
      columns_.copy(batch, 0, rows, c, categories);
      kernels_.hash_categories(categories, rows, keys);
      int count = rows;
      if (((present_everywhere >> c) & 1) == 0) {
        count = 0;
        for (int r = 0; r < rows; ++r) {
          keys[count] = keys[r];
          count += (batch.id_present[r] >> c) & 1;
        }
      }
      CountTable& table = tables_[static_cast<size_t>(c)];
      while (!table.has_room(static_cast<size_t>(count))) make_room(table);
      table.add(keys, count);
    }
  }

  void spill() {
    for (size_t c = 0; c < tables_.size(); ++c) {
      const size_t entries = tables_[c].sort_in_place();
      write_all(runs_fd_, tables_[c].data(), entries * sizeof(uint64_t));
      if (entries > 0) runs_.push_back({static_cast<uint32_t>(c), written_, entries});
      written_ += entries;
      tables_[c].reset();
    }
    rows_since_spill_ = 0;
  }

  const std::vector<Run>& runs() const { return runs_; }

 private:
  void make_room(CountTable& table) {
    size_t used = 0;
    for (const CountTable& t : tables_) used += t.bytes();
    // While a table grows, its old slots still take memory.
    const bool fits = used + 2 * table.bytes() <= budget_;
    if (fits || table.bytes() == CountTable::initial_bytes()) {
      table.grow();
    } else {
      spill();
    }
  }

  const Kernels& kernels_ = kernels();
  IdColumns columns_;
  size_t budget_;
  int runs_fd_;
  std::vector<CountTable> tables_;
  std::vector<Run> runs_;
  uint64_t written_ = 0;
  uint64_t rows_since_spill_ = 0;
};

}  // namespace clicks
