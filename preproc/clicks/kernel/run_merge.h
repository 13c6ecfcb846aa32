// SPDX-License-Identifier: Apache-2.0
// Merges the sorted runs of one column into its dictionary, in bounded memory.
//
// Keys are divided into ranges that each fit one hash table. The table sums the counts of a range
// over all runs, and only categories that reach the frequency limit are kept.

#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "count_table.h"
#include "dictionary.h"
#include "memory.h"
#include "row_stream.h"

namespace clicks {

struct RunSlice {
  const uint64_t* words;
  uint64_t count;
};

// Which categories of a column get an id.
struct MergeRule {
  uint64_t frequency_limit;  // fewer occurrences get none
  uint64_t max_ids;          // most ids; 0: no limit
  uint64_t budget_bytes;     // most memory

  uint64_t least_count() const { return std::max<uint64_t>(frequency_limit, 1); }
  uint64_t ids(uint64_t kept) const { return max_ids == 0 ? kept : std::min(kept, max_ids); }
};

// How a dictionary grows: its categories get no second id, and rare ones are counted further.
struct Growth {
  const ColumnDictionary* known;  // null: no category has an id yet
  int pending_fd;                 // file for the run of categories without an id; -1: not written
};

struct MergeResult {
  uint64_t kept;          // categories with an id
  uint64_t distinct;      // all categories
  uint64_t needed_bytes;  // memory needed; above the budget, no dictionary was written
};

// Writes the categories that stay without an id as a sorted run.
class PendingRun {
 public:
  explicit PendingRun(int fd) : fd_(fd) {}

  bool is_wanted() const { return fd_ >= 0; }
  std::vector<uint64_t>& words() { return words_; }
  // Writes the words if there are many, or all at the end.
  void flush(bool is_end) {
    if (!is_wanted() || (words_.size() < kWriteWords && !is_end)) return;
    write_all(fd_, words_.data(), words_.size() * sizeof(uint64_t));
    words_.clear();
  }

 private:
  static constexpr size_t kWriteWords = 8192;

  int fd_;
  std::vector<uint64_t> words_;
};

// The keys of a column that get an id, with their counts, as far as they fit in memory.
template <typename Kept>
class KeptKeys {
 public:
  KeptKeys(const MergeRule& rule, uint64_t most)
      : rule_(rule), kept_(std::max<uint64_t>(most, 1), Pages<Kept>::kOnUse) {}

  // Adds a key with all its occurrences; calls kept() for the entry if they suffice.
  template <typename MakeKept>
  void add(uint64_t count, const MakeKept& kept) {
    ++num_distinct_;
    if (count < rule_.least_count()) return;
    if (num_kept_ < kept_.size()) kept_[num_kept_] = kept();
    ++num_kept_;
  }

  // Unless there are too many keys, calls write(key) in id order, and flush() after some keys each.
  template <typename Write, typename Flush>
  MergeResult finish(uint64_t table_bytes, const Write& write, const Flush& flush) {
    const uint64_t ids = rule_.ids(num_kept_);
    if (num_kept_ <= kept_.size()) {
      std::sort(kept_.data(), kept_.data() + num_kept_);
      for (uint64_t i = 0; i < ids; ++i) {
        write(kept_[i]);
        if ((i + 1) % kWriteEntries == 0 || i + 1 == ids) flush();
      }
    }
    return {ids, num_distinct_, num_kept_ * sizeof(Kept) + table_bytes};
  }

 private:
  static constexpr size_t kWriteEntries = 8192;

  MergeRule rule_;
  Pages<Kept> kept_;
  uint64_t num_kept_ = 0;
  uint64_t num_distinct_ = 0;
};

struct KeptCategory {
  uint64_t count;
  uint32_t category;

  bool operator<(const KeptCategory& other) const {
    return count != other.count ? count > other.count : category < other.category;
  }
};

class RunMerge {
 public:
  RunMerge(const RunSlice* runs, size_t num_runs, const MergeRule& rule, const Growth& growth,
           Progress* progress)
      : runs_(runs, runs + num_runs),
        cursors_(num_runs, 0),
        ends_(num_runs, 0),
        progress_(progress),
        table_log2_(log2_of_table(rule.budget_bytes)),
        table_(size_t{1} << table_log2_),
        kept_(rule, most_kept(rule.budget_bytes)),
        least_count_(rule.least_count()),
        known_(growth.known == nullptr ? nullptr : growth.known->narrow.get()),
        pending_(growth.pending_fd) {}

  MergeResult run(int dictionary_fd) {
    uint64_t low = 0;
    int width_log2 = 32;
    while (low < kKeys) {
      const uint64_t total = find_range_end(low + (uint64_t{1} << width_log2));
      // At most half full; a range of one key cannot be divided and needs one slot.
      if (total > table_.size() / 2 && width_log2 > 0) {
        --width_log2;
        continue;
      }
      add_range(low, width_log2);
      keep_frequent();
      low += uint64_t{1} << width_log2;
      report_bytes(progress_, total * sizeof(uint64_t));
      // A range can be widened if it starts at a multiple of its new width.
      if (total < table_.size() / 8 && width_log2 < 32 && low % (uint64_t{2} << width_log2) == 0) {
        ++width_log2;
      }
    }
    pending_.flush(true);
    std::vector<uint32_t> buffer;
    return kept_.finish(
        table_.bytes(), [&](const KeptCategory& kept) { buffer.push_back(kept.category); },
        [&] {
          write_all(dictionary_fd, buffer.data(), buffer.size() * sizeof(uint32_t));
          buffer.clear();
        });
  }

 private:
  struct Slot {
    uint64_t count;  // 0: free
    uint32_t key;
  };
  static constexpr uint64_t kKeys = uint64_t{1} << 32;
  static constexpr size_t kMinTable = size_t{256} << 10;
  static constexpr size_t kMaxTable = size_t{1} << 20;  // about the L2 cache of one core

  static int log2_of_table(size_t budget_bytes) {
    const size_t bytes = std::clamp<size_t>(budget_bytes / 4, kMinTable, kMaxTable);
    int log2 = 0;
    while ((sizeof(Slot) << (log2 + 1)) <= bytes) ++log2;
    return log2;
  }
  uint64_t most_kept(size_t budget_bytes) const {
    const size_t rest = budget_bytes > table_.bytes() ? budget_bytes - table_.bytes() : 0;
    size_t total = 0;
    for (const RunSlice& run : runs_) total += run.count;
    return std::min(rest / sizeof(KeptCategory), total);
  }

  // Sets ends_ to the first entry of each run from key `high` on; returns the entries before them.
  uint64_t find_range_end(uint64_t high) {
    uint64_t total = 0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const uint64_t* begin = runs_[i].words + cursors_[i];
      const uint64_t* end = runs_[i].words + runs_[i].count;
      if (high < kKeys) end = std::lower_bound(begin, end, high << 32);
      ends_[i] = static_cast<uint64_t>(end - runs_[i].words);
      total += ends_[i] - cursors_[i];
    }
    return total;
  }

  void add_range(uint64_t low, int width_log2) {
    const int shift = std::max(0, width_log2 - table_log2_);
    const size_t mask = table_.size() - 1;
    for (size_t i = 0; i < runs_.size(); ++i) {
      for (uint64_t e = cursors_[i]; e < ends_[i]; ++e) {
        const uint64_t entry = runs_[i].words[e];
        const uint32_t key = static_cast<uint32_t>(entry >> 32);
        size_t slot = static_cast<size_t>((key - low) >> shift);
        while (table_[slot].count != 0 && table_[slot].key != key) slot = (slot + 1) & mask;
        table_[slot].key = key;
        table_[slot].count += static_cast<uint32_t>(entry);
      }
      cursors_[i] = ends_[i];
    }
  }

  void keep_frequent() {
    const size_t written = pending_.words().size();
    for (size_t i = 0; i < table_.size(); ++i) {
      Slot& slot = table_[i];
      if (slot.count == 0) continue;
      const uint64_t count = slot.count;
      slot.count = 0;
      const uint32_t category = category_of_key(slot.key);
      if (known_ != nullptr && known_->find(category, known_->bucket_of_key(slot.key)) != 0) {
        continue;
      }
      if (count < least_count_ && pending_.is_wanted()) {
        pending_.words().push_back(uint64_t{slot.key} << 32 | count);
      }
      kept_.add(count, [&] { return KeptCategory{count, category}; });
    }
    // Slots are in key order only outside clusters; ranges are in key order.
    std::vector<uint64_t>& pending = pending_.words();
    std::sort(pending.begin() + static_cast<ptrdiff_t>(written), pending.end());
    pending_.flush(false);
  }

  std::vector<RunSlice> runs_;
  std::vector<uint64_t> cursors_;
  std::vector<uint64_t> ends_;
  Progress* progress_;
  int table_log2_;
  Pages<Slot> table_;
  KeptKeys<KeptCategory> kept_;
  uint64_t least_count_;
  const Dictionary* known_;
  PendingRun pending_;
};

}  // namespace clicks
