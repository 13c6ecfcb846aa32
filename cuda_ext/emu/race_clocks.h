// SPDX-License-Identifier: Apache-2.0
// Finds accesses to shared memory that no barrier separates. Each thread has a clock for every
// other thread: what it has seen of it through barriers. An access that meets a newer one of
// another thread, one of the two a write, is a race, even where this run's order happened to be
// harmless.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace recsys::emulator {

class RaceClocks {
 public:
  RaceClocks(int threads, size_t shared_bytes)
      : clocks_(threads, std::vector<uint32_t>(threads, 0)), cells_(shared_bytes / kCell + 1) {
    for (int thread = 0; thread < threads; ++thread) {
      clocks_[thread][thread] = 1;
    }
  }

  // Threads [begin, end) have met at a barrier.
  void meet(int begin, int end) {
    std::vector<uint32_t> seen(clocks_.size(), 0);
    for (int thread = begin; thread < end; ++thread) {
      for (size_t other = 0; other < seen.size(); ++other) {
        seen[other] = std::max(seen[other], clocks_[thread][other]);
      }
    }
    for (int thread = begin; thread < end; ++thread) {
      clocks_[thread] = seen;
      ++clocks_[thread][thread];
    }
  }

  // Returns "" or the race that this access makes.
  std::string access(int thread, size_t offset, size_t bytes, bool is_write) {
    for (size_t cell = offset / kCell; cell <= (offset + bytes - 1) / kCell; ++cell) {
      Cell& touched = cells_.at(cell);
      if (is_newer(touched.writer, touched.write_clock, thread)) {
        return describe(cell, touched.writer, "wrote", thread, is_write);
      }
      if (!is_write) {
        note_reader(touched, thread);
        continue;
      }
      for (const auto& [reader, clock] : touched.readers) {
        if (is_newer(reader, clock, thread)) {
          return describe(cell, reader, "read", thread, true);
        }
      }
      touched.readers.clear();
      touched.writer = thread;
      touched.write_clock = clocks_[thread][thread];
    }
    return "";
  }

 private:
  static constexpr size_t kCell = 2;  // the smallest number that kernels keep in shared memory

  struct Cell {
    int writer = -1;
    uint32_t write_clock = 0;
    std::vector<std::pair<int, uint32_t>> readers;
  };

  bool is_newer(int other, uint32_t clock, int thread) const {
    return other >= 0 && other != thread && clock > clocks_[thread][other];
  }

  void note_reader(Cell& cell, int thread) {
    for (auto& [reader, clock] : cell.readers) {
      if (reader == thread) {
        clock = clocks_[thread][thread];
        return;
      }
    }
    cell.readers.emplace_back(thread, clocks_[thread][thread]);
  }

  static std::string describe(size_t cell, int other, const char* did, int thread, bool is_write) {
    return "race on shared memory byte " + std::to_string(cell * kCell) + ": thread " +
           std::to_string(other) + " " + did + " it and thread " + std::to_string(thread) +
           (is_write ? " writes" : " reads") + " it with no barrier between";
  }

  std::vector<std::vector<uint32_t>> clocks_;
  std::vector<Cell> cells_;
};

}  // namespace recsys::emulator
