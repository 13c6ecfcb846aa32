// SPDX-License-Identifier: Apache-2.0
// Watches the accesses of a launch to global memory: finds two accesses to one place, at least one
// of them a write, that nothing orders. Blocks are never ordered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "race_clocks.h"

namespace recsys::emulator {

enum class AccessKind { kRead, kWrite, kAtomic };

class GlobalMemory {
 public:
  // Records an access of a thread of `block`. Returns the race that it causes, "" for none.
  std::string access(RaceClocks& clocks, int block, int thread, const void* address, size_t bytes,
                     AccessKind kind);

 private:
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

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
};

}  // namespace recsys::emulator
