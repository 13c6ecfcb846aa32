// SPDX-License-Identifier: Apache-2.0
#include "global_memory.h"

namespace recsys::emulator {

constexpr uintptr_t kCell = 2;  // bytes of the smallest type that kernels write

std::string GlobalMemory::access(RaceClocks& clocks, int block, int thread, const void* address,
                                 size_t bytes, AccessKind kind) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t number = begin / kCell; number <= (begin + bytes - 1) / kCell; ++number) {
    const std::string other = conflict(cell(number), clocks, block, thread, kind);
    if (!other.empty()) {
      const char* what = kind == AccessKind::kRead    ? "reads"
                         : kind == AccessKind::kWrite ? "writes"
                                                      : "changes";
      return "race on global memory: " + other + " and thread " + std::to_string(thread) + " " +
             what + " it, with nothing between";
    }
  }
  return "";
}

// Returns what another thread did to the cell, "" for nothing.
std::string GlobalMemory::conflict(Cell& cell, RaceClocks& clocks, int block, int thread,
                                   AccessKind kind) {
  const bool is_read = kind == AccessKind::kRead;
  if (cell.block != block) {
    if (cell.own.writer >= 0) {
      return "a thread of block " + std::to_string(cell.block) + " wrote it";
    }
    cell.was_read_elsewhere = cell.was_read_elsewhere || !cell.own.readers.empty();
    cell.own = {};
    cell.block = block;
  }
  if (!is_read && cell.was_read_elsewhere) {
    return "a thread of another block read it";
  }
  if (kind == AccessKind::kAtomic) {
    const std::string other = clocks.conflict(cell.own, thread, true);
    cell.has_atomics = true;
    return other;
  }
  if (cell.has_atomics) {
    return "a thread changed it by an atomic operation";
  }
  const std::string other = clocks.conflict(cell.own, thread, !is_read);
  if (other.empty()) {
    clocks.note(cell.own, thread, !is_read);
  }
  return other;
}

GlobalMemory::Cell& GlobalMemory::cell(uintptr_t number) {
  auto& page = pages_[number / kPageCells];
  if (page == nullptr) {
    page = std::make_unique<Page>();
  }
  return (*page)[number % kPageCells];
}

}  // namespace recsys::emulator
