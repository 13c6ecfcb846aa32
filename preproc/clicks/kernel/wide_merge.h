// SPDX-License-Identifier: Apache-2.0
// Merges the sorted runs of a column of wide keys into its dictionary.
//
// All runs are read in parallel, in hash order. For kept keys only counts and addresses take
// memory: the keys themselves stay in the runs, which are mapped files.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <queue>
#include <vector>

#include "count_table.h"
#include "dictionary.h"
#include "memory.h"
#include "run_merge.h"

namespace clicks {

class WideMerge {
 public:
  WideMerge(const RunSlice* runs, size_t num_runs, const MergeRule& rule, const Growth& growth,
            KeyType type, Progress* progress)
      : type_(type),
        progress_(progress),
        kept_(rule, most_kept(runs, num_runs, rule)),
        least_count_(rule.least_count()),
        known_(growth.known == nullptr ? nullptr : growth.known->wide.get()),
        pending_(growth.pending_fd) {
    for (size_t i = 0; i < num_runs; ++i) {
      runs_.push({runs[i].words, runs[i].words + runs[i].count, *runs[i].words});
    }
  }

  // ends_fd: file for the end of each text.
  MergeResult run(int keys_fd, int ends_fd) {
    uint64_t words = 0;
    while (!runs_.empty()) {
      const Cursor first = runs_.top();
      Kept sum{0, first.bytes(), first.entry().length, type_};
      while (!runs_.empty() && runs_.top().has_key_of(first)) {
        Cursor run = runs_.top();
        runs_.pop();
        sum.count += run.entry().count;
        words += run.entry().words();
        if (run.advance()) runs_.push(run);
      }
      if (known_ == nullptr || known_->find(WideKey::of(sum.bytes, sum.length)) == 0) {
        if (sum.count < least_count_) add_pending(first.hash, sum);
        kept_.add(sum.count, [&] { return sum; });
      }
      if (words >= kReportedWords || runs_.empty()) {
        report_bytes(progress_, words * sizeof(uint64_t));
        words = 0;
      }
    }
    pending_.flush(true);
    std::vector<uint8_t> keys;
    std::vector<uint64_t> ends;
    uint64_t end = position(keys_fd);  // after the known keys
    const auto write = [&](const Kept& kept) {
      keys.insert(keys.end(), kept.bytes, kept.bytes + kept.length);
      ends.push_back(end += kept.length);
    };
    return kept_.finish(0, write, [&] {
      write_all(keys_fd, keys.data(), keys.size());
      if (type_ == KeyType::kText) write_all(ends_fd, ends.data(), ends.size() * sizeof(uint64_t));
      keys.clear();
      ends.clear();
    });
  }

 private:
  struct Kept {
    uint64_t count;
    const uint8_t* bytes;
    uint32_t length;
    KeyType type;

    bool operator<(const Kept& other) const {
      if (count != other.count) return count > other.count;
      if (type == KeyType::kText) {
        return is_text_before(bytes, length, other.bytes, other.length);
      }
      return integer() < other.integer();
    }
    int64_t integer() const {
      int64_t value;
      std::memcpy(&value, bytes, sizeof(value));
      return value;
    }
  };

  // Position in a run, which has at least one entry.
  struct Cursor {
    const uint64_t* at;
    const uint64_t* end;
    uint64_t hash;

    WideEntry entry() const {
      WideEntry entry;
      std::memcpy(&entry, at, sizeof(entry));
      return entry;
    }
    const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(at + 2); }
    bool advance() {
      at += entry().words();
      if (at == end) return false;
      hash = *at;
      return true;
    }
    bool has_key_of(const Cursor& other) const {
      return hash == other.hash && entry().length == other.entry().length &&
             std::memcmp(bytes(), other.bytes(), entry().length) == 0;
    }
    // The least comes first in the queue.
    bool operator<(const Cursor& other) const {
      if (hash != other.hash) return other.hash < hash;
      return is_text_before(other.bytes(), other.entry().length, bytes(), entry().length);
    }
  };

  void add_pending(uint64_t hash, const Kept& sum) {
    if (!pending_.is_wanted()) return;
    const WideEntry entry{hash, static_cast<uint32_t>(sum.count), sum.length};
    std::vector<uint64_t>& words = pending_.words();
    const size_t at = words.size();
    words.resize(at + entry.words());
    std::memcpy(&words[at], &entry, sizeof(entry));
    std::memcpy(&words[at + 2], sum.bytes, sum.length);
    pending_.flush(false);
  }

  static uint64_t most_kept(const RunSlice* runs, size_t num_runs, const MergeRule& rule) {
    uint64_t words = 0;
    for (size_t i = 0; i < num_runs; ++i) words += runs[i].count;
    return std::min<uint64_t>(rule.budget_bytes / sizeof(Kept), words / 3);
  }

  static constexpr uint64_t kReportedWords = 1 << 17;

  KeyType type_;
  Progress* progress_;
  std::priority_queue<Cursor> runs_;
  KeptKeys<Kept> kept_;
  uint64_t least_count_;
  const WideDictionary* known_;
  PendingRun pending_;
};

}  // namespace clicks
