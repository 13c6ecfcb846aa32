// SPDX-License-Identifier: Apache-2.0
// Counts categories in bounded memory.
//
// A category is stored under its key, a bijective hash of its 32 bits. Its slot is the top bits of
// that key, so slot order is key order except inside small clusters. A table therefore becomes a
// sorted run in one pass without a full sort, and equal key ranges have about equally many
// categories.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
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

// One sorted run in a runs file, in 64-bit words. An entry is a word, key << 32 | count, or a
// `WideEntry` for wide keys. Entries are ascending.
struct Run {
  uint32_t column;
  uint64_t first_word;  // from the start of the file
  uint64_t words;
};

// A 32-bit category and its count; 0: free.
struct NarrowCount {
  uint64_t word;  // key << 32 | count

  bool is_free() const { return word == 0; }
  uint64_t order() const { return word; }
  bool has_key_of(const NarrowCount& other) const { return (word ^ other.word) <= UINT32_MAX; }
  void add(const NarrowCount& other) { word += other.word & UINT32_MAX; }
  bool operator<(const NarrowCount& other) const { return word < other.word; }
};

// A wide key and its count in a run; the key's bytes follow, padded to a whole word.
struct WideEntry {
  uint64_t hash;
  uint32_t count;
  uint32_t length;

  uint64_t words() const { return (sizeof(WideEntry) + uint64_t{length} + 7) / 8; }
};

// The slot of a count is given by the highest bits of its `order`.
template <typename Count>
class CountTable {
 public:
  static constexpr int kInitialLog2 = 11;

  CountTable() : slots_(size_t{1} << kInitialLog2), log2_(kInitialLog2) {}

  static constexpr size_t initial_bytes() { return sizeof(Count) << kInitialLog2; }
  size_t bytes() const { return slots_.bytes(); }
  bool has_room(size_t extra) const { return used_ + extra <= slots_.size() / 8 * 5; }

  // Adds count_of(0), count_of(1), ... and calls added() with the slot of each new key. The table
  // must have room for `count` new keys.
  template <typename CountOf, typename Added>
  void add(int count, const CountOf& count_of, const Added& added) {
    const int shift = 64 - log2_;
    Count* slots = slots_.data();
    constexpr int kAhead = 16;
    const int prefetched = log2_ >= 12 ? count : 0;  // the tables of all columns share the cache
    for (int i = 0; i < std::min(prefetched, kAhead); ++i) {
      __builtin_prefetch(&slots[count_of(i).order() >> shift], 1);
    }
    for (int i = 0; i < count; ++i) {
      if (i + kAhead < prefetched) {
        __builtin_prefetch(&slots[count_of(i + kAhead).order() >> shift], 1);
      }
      add_one(count_of(i), added);
    }
  }

  // Doubles the number of slots.
  void grow() {
    Pages<Count> old(std::move(slots_));
    slots_ = Pages<Count>(old.size() * 2);
    ++log2_;
    used_ = 0;
    for (size_t i = 0; i < old.size(); ++i) {
      if (!old[i].is_free()) add_one(old[i], [](Count&) {});
    }
  }

  // Moves all counts to the front, sorted, and returns their number; only reset() may follow.
  size_t sort_in_place() {
    std::vector<Count> wrapped;  // counts of the last slots that wrapped around to the start
    Count* slots = slots_.data();
    size_t out = 0, cluster = 0;
    bool first_cluster = true;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Count count = slots[i];
      if (count.is_free()) {
        sort_cluster(slots + cluster, slots + out);
        cluster = out;
        first_cluster = false;
      } else if (first_cluster && (count.order() >> (64 - log2_)) > i) {
        wrapped.push_back(count);
      } else {
        slots[out++] = count;
      }
    }
    for (const Count& count : wrapped) slots[out++] = count;
    sort_cluster(slots + cluster, slots + out);
    return out;
  }

  const Count* data() const { return slots_.data(); }

  void reset() {
    slots_ = Pages<Count>();
    slots_ = Pages<Count>(size_t{1} << kInitialLog2);
    log2_ = kInitialLog2;
    used_ = 0;
  }

 private:
  template <typename Added>
  CLICKS_INLINE void add_one(const Count& count, const Added& added) {
    Count* const slots = slots_.data();
    const size_t mask = slots_.size() - 1;
    for (size_t slot = count.order() >> (64 - log2_);; slot = (slot + 1) & mask) {
      if (slots[slot].is_free()) {
        slots[slot] = count;
        added(slots[slot]);
        ++used_;
        return;
      }
      if (slots[slot].has_key_of(count)) {
        slots[slot].add(count);
        return;
      }
    }
  }

  static void sort_cluster(Count* begin, Count* end) {
    if (end - begin > 32) {
      std::sort(begin, end);
      return;
    }
    for (Count* i = begin + 1; i < end; ++i) {
      const Count count = *i;
      Count* j = i;
      for (; j > begin && count < j[-1]; --j) *j = j[-1];
      *j = count;
    }
  }

  Pages<Count> slots_;
  size_t used_ = 0;
  int log2_;
};

// The tables of all columns; when the memory budget is used up, they are written as sorted runs.
class CategoryCounts {
 public:
  CategoryCounts(const RowFormat& format, size_t budget_bytes, int runs_fd)
      : columns_(format),
        budget_(budget_bytes),
        runs_fd_(runs_fd),
        tables_(static_cast<size_t>(columns_.count() + columns_.num_lists())),
        wide_tables_(columns_.has_wide_keys() ? tables_.size() : 0) {}

  // Counts the first rows of a batch.
  void add(const RowBatch& batch, int rows) {
    // A count has 32 bits in a run, so a run ends before a count could overflow into the key.
    if (rows_since_spill_ > UINT32_MAX / 2) spill();
    rows_since_spill_ += static_cast<uint64_t>(rows);
    uint64_t present_everywhere = 0;  // of 64 columns
    for (int c = 0; c < columns_.count(); ++c) {
      if (c % 64 == 0) {
        const uint64_t* const present = batch.id_present.words[c / 64];
        present_everywhere = ~uint64_t{0};
        for (int r = 0; r < rows; ++r) present_everywhere &= present[r];
      }
      if (columns_.has_wide_keys(c)) {
        add_wide(batch, rows, c);
      } else {
        add_narrow(batch, rows, c, ((present_everywhere >> c % 64) & 1) != 0);
      }
    }
    for (int l = 0; l < columns_.num_lists(); ++l) add_lists(batch.lists[l], rows, l);
  }

  void spill() {
    for (size_t c = 0; c < tables_.size(); ++c) {
      const uint64_t first = written_;
      if (columns_.has_wide_keys(static_cast<int>(c))) {
        write_wide(wide_tables_[c]);
      } else {
        const size_t entries = tables_[c].sort_in_place();
        write_all(runs_fd_, tables_[c].data(), entries * sizeof(uint64_t));
        written_ += entries;
        tables_[c].reset();
      }
      if (written_ > first) runs_.push_back({static_cast<uint32_t>(c), first, written_ - first});
    }
    arena_.clear();
    rows_since_spill_ = 0;
  }

  const std::vector<Run>& runs() const { return runs_; }

 private:
  void add_narrow(const RowBatch& batch, int rows, int c, bool is_present_everywhere) {
    uint32_t* const keys = keys_;
    columns_.copy(batch, 0, rows, c, keys);
    kernels_.hash_categories(keys, rows, keys);
    int count = rows;
    if (!is_present_everywhere) {
      count = 0;
      for (int r = 0; r < rows; ++r) {
        keys[count] = keys[r];
        count += batch.id_present(r, static_cast<size_t>(c));
      }
    }
    add_keys(c, count);
  }

  // Counts the first `count` of `keys_`.
  void add_keys(int c, int count) {
    const uint32_t* const keys = keys_;
    CountTable<NarrowCount>& table = tables_[static_cast<size_t>(c)];
    while (!table.has_room(static_cast<size_t>(count))) make_room(table);
    table.add(
        count, [&](int i) { return NarrowCount{uint64_t{keys[i]} << 32 | 1}; },
        [](NarrowCount&) {});
  }

  void add_wide(const RowBatch& batch, int rows, int c) {
    int count = 0;
    size_t bytes = 0;
    for (int r = 0; r < rows; ++r) {
      if (!batch.id_present(r, static_cast<size_t>(c))) continue;
      const WideKey& key = columns_.wide_key(batch, r, c);
      wide_keys_[count] = &key;
      ++count;
      bytes += key.length > WideKey::kShort ? key.length : 0;
    }
    add_wide_keys(c, count, bytes);
  }

  // Counts the elements of all lists in batches.
  void add_lists(const ListColumn& lists, int rows, int l) {
    const int c = columns_.count() + l;
    const bool is_wide = columns_.has_wide_keys(c);
    int count = 0;
    size_t bytes = 0;
    const auto count_keys = [&] {
      if (rows_since_spill_ > UINT32_MAX / 2) spill();
      rows_since_spill_ += static_cast<uint64_t>(count);
      if (is_wide) {
        add_wide_keys(c, count, bytes);
      } else {
        kernels_.hash_categories(keys_, count, keys_);
        add_keys(c, count);
      }
      count = 0;
      bytes = 0;
    };
    for (int r = 0; r < rows; ++r) {
      for (uint32_t i = lists.begin[r]; i < lists.end[r]; ++i) {
        if (is_wide) {
          const WideKey& key = lists.elements->wide[i];
          wide_keys_[count++] = &key;
          bytes += key.length > WideKey::kShort ? key.length : 0;
        } else {
          keys_[count++] = lists.elements->narrow[i];
        }
        if (count == kBatchRows) count_keys();
      }
    }
    count_keys();
  }

  // Counts the first `count` of `wide_keys_`; bytes: total of the long keys.
  void add_wide_keys(int c, int count, size_t bytes) {
    // Chunks for the keys of a batch take at most the bytes of the keys and one chunk.
    if (bytes > 0 && arena_.bytes() > 0 && used() + bytes + KeyArena::kChunkBytes > budget_) {
      spill();
    }
    CountTable<WideKey>& table = wide_tables_[static_cast<size_t>(c)];
    while (!table.has_room(static_cast<size_t>(count))) make_room(table);
    table.add(
        count, [&](int i) -> const WideKey& { return *wide_keys_[i]; },
        [&](WideKey& added) {
          if (added.length > WideKey::kShort) {
            added.point_to(arena_.copy(added.data(), added.length));
          }
        });
  }

  void write_wide(CountTable<WideKey>& table) {
    const size_t entries = table.sort_in_place();
    std::vector<uint64_t> words;
    for (size_t i = 0; i < entries; ++i) {
      const WideKey& key = table.data()[i];
      const WideEntry entry{key.hash, key.value, key.length};
      const size_t at = words.size();
      words.resize(at + entry.words());
      std::memcpy(&words[at], &entry, sizeof(entry));
      std::memcpy(&words[at + 2], key.data(), key.length);
      if (words.size() >= kWriteWords || i + 1 == entries) {
        write_all(runs_fd_, words.data(), words.size() * sizeof(uint64_t));
        written_ += words.size();
        words.clear();
      }
    }
    table.reset();
  }

  size_t used() const {
    size_t bytes = arena_.bytes();
    for (const auto& table : tables_) bytes += table.bytes();
    for (const auto& table : wide_tables_) bytes += table.bytes();
    return bytes;
  }

  template <typename Count>
  void make_room(CountTable<Count>& table) {
    // While a table grows, its old slots still take memory.
    const bool fits = used() + 2 * table.bytes() <= budget_;
    if (fits || table.bytes() == CountTable<Count>::initial_bytes()) {
      table.grow();
    } else {
      spill();
    }
  }

  static constexpr size_t kWriteWords = 8192;

  const Kernels& kernels_ = kernels();
  IdColumns columns_;
  size_t budget_;
  int runs_fd_;
  std::vector<CountTable<NarrowCount>> tables_;
  std::vector<CountTable<WideKey>> wide_tables_;  // a column uses one of the two
  KeyArena arena_;
  uint32_t keys_[kBatchRows];  // of one column
  const WideKey* wide_keys_[kBatchRows];
  std::vector<Run> runs_;
  uint64_t written_ = 0;  // words
  uint64_t rows_since_spill_ = 0;
};

}  // namespace clicks
