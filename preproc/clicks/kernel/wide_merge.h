// SPDX-License-Identifier: Apache-2.0
// Merges the sorted runs of a column of wide keys into its dictionary.
//
// All runs are read side by side, in the order of their hashes. Of what is kept only counts and
// addresses take memory: the keys stay in the runs, which are mapped files.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <queue>
#include <vector>

#include "count_table.h"
#include "memory.h"
#include "run_merge.h"

namespace clicks {

class WideMerge {
 public:
  WideMerge(const RunSlice* runs, size_t num_runs, const MergeRule& rule, KeyType type,
            Progress* progress)
      : rule_(rule), type_(type), progress_(progress) {
    uint64_t words = 0;
    for (size_t i = 0; i < num_runs; ++i) {
      runs_.push({runs[i].words, runs[i].words + runs[i].count, *runs[i].words});
      words += runs[i].count;
    }
    const size_t most = std::min<uint64_t>(rule.budget_bytes / sizeof(Kept), words / 3);
    kept_ = Pages<Kept>(std::max<size_t>(most, 1), Pages<Kept>::kOnUse);
  }

  // ends_fd: of texts, the end of each.
  MergeResult run(int keys_fd, int ends_fd) {
    uint64_t words = 0;
    while (!runs_.empty()) {
      const Cursor first = runs_.top();
      Kept sum{0, first.bytes(), first.entry().length};
      while (!runs_.empty() && runs_.top().has_key_of(first)) {
        Cursor run = runs_.top();
        runs_.pop();
        sum.count += run.entry().count;
        words += run.entry().words();
        if (run.advance()) runs_.push(run);
      }
      ++num_distinct_;
      if (sum.count >= rule_.least_count()) {
        if (num_kept_ < kept_.size()) kept_[num_kept_] = sum;
        ++num_kept_;
      }
      if (words >= kReportedWords || runs_.empty()) {
        report_bytes(progress_, words * sizeof(uint64_t));
        words = 0;
      }
    }
    if (num_kept_ <= kept_.size()) write_dictionary(keys_fd, ends_fd);
    return {rule_.ids(num_kept_), num_distinct_, num_kept_ * sizeof(Kept)};
  }

 private:
  struct Kept {
    uint64_t count;
    const uint8_t* bytes;
    uint32_t length;
  };

  // An entry of a run, which has at least one.
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
    // The least is the first of the queue.
    bool operator<(const Cursor& other) const {
      if (hash != other.hash) return other.hash < hash;
      return is_text_before(other.bytes(), other.entry().length, bytes(), entry().length);
    }
  };

  bool comes_before(const Kept& a, const Kept& b) const {
    if (a.count != b.count) return a.count > b.count;
    if (type_ == KeyType::kText) return is_text_before(a.bytes, a.length, b.bytes, b.length);
    int64_t x, y;
    std::memcpy(&x, a.bytes, sizeof(x));
    std::memcpy(&y, b.bytes, sizeof(y));
    return x < y;
  }

  void write_dictionary(int keys_fd, int ends_fd) {
    std::sort(kept_.data(), kept_.data() + num_kept_,
              [this](const Kept& a, const Kept& b) { return comes_before(a, b); });
    std::vector<uint8_t> keys;
    std::vector<uint64_t> ends;
    uint64_t end = 0;
    const uint64_t ids = rule_.ids(num_kept_);
    for (uint64_t i = 0; i < ids; ++i) {
      keys.insert(keys.end(), kept_[i].bytes, kept_[i].bytes + kept_[i].length);
      ends.push_back(end += kept_[i].length);
      if (ends.size() == kWriteEntries || i + 1 == ids) {
        write_all(keys_fd, keys.data(), keys.size());
        if (type_ == KeyType::kText) {
          write_all(ends_fd, ends.data(), ends.size() * sizeof(uint64_t));
        }
        keys.clear();
        ends.clear();
      }
    }
  }

  static constexpr size_t kWriteEntries = 4096;
  static constexpr uint64_t kReportedWords = 1 << 17;

  MergeRule rule_;
  KeyType type_;
  Progress* progress_;
  std::priority_queue<Cursor> runs_;
  Pages<Kept> kept_;
  uint64_t num_kept_ = 0;
  uint64_t num_distinct_ = 0;
};

}  // namespace clicks
