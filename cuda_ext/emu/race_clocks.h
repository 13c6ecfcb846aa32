// SPDX-License-Identifier: Apache-2.0
// Finds accesses to memory that no barrier separates. Each thread has a clock for every other
// thread: how much it has seen of it through barriers. If an access meets a newer one of another
// thread, and one of the two is a write, that is a race, even if this run's order happened to be
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

  // The threads that last wrote and read a place.
  struct Cell {
    int writer = -1;
    uint32_t write_clock = 0;
    std::vector<std::pair<int, uint32_t>> readers;
  };

  // Returns the access to the cell that no barrier separates from this one, "" for none.
  std::string conflict(const Cell& cell, int thread, bool is_write) const {
    if (is_newer(cell.writer, cell.write_clock, thread)) {
      return "thread " + std::to_string(cell.writer) + " wrote it";
    }
    for (const auto& [reader, clock] : cell.readers) {
      if (is_write && is_newer(reader, clock, thread)) {
        return "thread " + std::to_string(reader) + " read it";
      }
    }
    return "";
  }

  void note(Cell& cell, int thread, bool is_write) const {
    if (is_write) {
      cell = {thread, clocks_[thread][thread], {}};
    } else {
      note_reader(cell, thread);
    }
  }

  // Returns the race that this access to shared memory causes, "" for none.
  std::string access(int thread, size_t offset, size_t bytes, bool is_write) {
    for (size_t number = offset / kCell; number <= (offset + bytes - 1) / kCell; ++number) {
      Cell& touched = cells_.at(number);
      const std::string other = conflict(touched, thread, is_write);
      if (!other.empty()) {
        return "race on shared memory byte " + std::to_string(number * kCell) + ": " + other +
               " and thread " + std::to_string(thread) + (is_write ? " writes" : " reads") +
               " it with no barrier between";
      }
      note(touched, thread, is_write);
    }
    return "";
  }

 private:
  static constexpr size_t kCell = 2;  // bytes of the smallest type in shared memory

  bool is_newer(int other, uint32_t clock, int thread) const {
    return other >= 0 && other != thread && clock > clocks_[thread][other];
  }

  void note_reader(Cell& cell, int thread) const {
    for (auto& [reader, clock] : cell.readers) {
      if (reader == thread) {
        clock = clocks_[thread][thread];
        return;
      }
    }
    cell.readers.emplace_back(thread, clocks_[thread][thread]);
  }

  std::vector<std::vector<uint32_t>> clocks_;
  std::vector<Cell> cells_;
};

}  // namespace recsys::emulator
