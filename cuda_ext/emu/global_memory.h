// SPDX-License-Identifier: Apache-2.0
// Watches the accesses of a launch to global memory: counts the sectors that its warps ask for, and
// finds two accesses to one place, not both reads, that nothing orders. Blocks are never ordered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "race_clocks.h"

namespace recsys::emulator {

enum class AccessKind { kRead, kWrite, kAtomic };

// Sectors of 32 bytes that the accesses of warps touch, and the fewest that hold as many bytes.
struct Traffic {
  long long read = 0;
  long long fewest_read = 0;
  long long written = 0;  // also by atomic operations
  long long fewest_written = 0;
};

class GlobalMemory {
 public:
  // Notes what a thread of `block` does. `site` tells the instructions of the kernel apart: the
  // accesses of a warp's lanes at one site, each the n-th of its lane since the warp last met, are
  // one access of the warp. Returns "" or the race that it makes.
  std::string access(RaceClocks& clocks, int block, int thread, const void* site,
                     const void* address, size_t bytes, AccessKind kind);

  // Threads [begin, end) have met, or left the kernel.
  void meet(int begin, int end);

  const Traffic& traffic() const { return traffic_; }

 private:
  struct Access {
    const void* site;
    int number;  // among those of its lane at this site
    AccessKind kind;
    uintptr_t begin;
    size_t bytes;
  };
  struct Cell {
    int block = -1;  // of the accesses in `own`
    bool was_read_elsewhere = false;
    bool has_atomics = false;
    RaceClocks::Cell own;
  };
  static constexpr size_t kPageCells = 256;
  using Page = std::array<Cell, kPageCells>;

  Cell& cell(uintptr_t number);
  static std::string conflict(Cell& cell, RaceClocks& clocks, int block, int thread,
                              AccessKind kind);
  void count(std::vector<Access>& accesses);

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::vector<std::vector<Access>> of_warp_;
  std::vector<std::vector<std::pair<const void*, int>>> site_counts_;  // of each thread
  Traffic traffic_;
};

}  // namespace recsys::emulator
