// SPDX-License-Identifier: Apache-2.0
#include "global_memory.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "block_scheduler.h"

namespace recsys::emulator {
namespace {

constexpr uintptr_t kSector = 32;
constexpr uintptr_t kCell = 2;  // the smallest number that kernels write

int count_bits(uint32_t mask) {
  int bits = 0;
  for (; mask != 0; mask &= mask - 1) {
    ++bits;
  }
  return bits;
}

template <typename T>
T& grown(std::vector<T>& items, size_t index) {
  if (items.size() <= index) {
    items.resize(index + 1);
  }
  return items[index];
}

}  // namespace

std::string GlobalMemory::access(RaceClocks& clocks, int block, int thread, const void* site,
                                 const void* address, size_t bytes, AccessKind kind) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  auto& counts = grown(site_counts_, thread);
  auto count = std::find_if(counts.begin(), counts.end(),
                            [site](const auto& entry) { return entry.first == site; });
  if (count == counts.end()) {
    count = counts.insert(counts.end(), {site, 0});
  }
  grown(of_warp_, thread / kWarp).push_back({site, count->second++, kind, begin, bytes});
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

// Returns "" or what another thread did to the cell.
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

void GlobalMemory::meet(int begin, int end) {
  for (int thread = begin; thread < end && thread < static_cast<int>(site_counts_.size());
       ++thread) {
    site_counts_[thread].clear();
  }
  for (int warp = begin / kWarp; warp * kWarp < end && warp < static_cast<int>(of_warp_.size());
       ++warp) {
    count(of_warp_[warp]);
    of_warp_[warp].clear();
  }
}

void GlobalMemory::count(std::vector<Access>& accesses) {
  const auto instruction = [](const Access& access) {
    return std::make_tuple(access.site, access.number, access.kind);
  };
  std::sort(accesses.begin(), accesses.end(),
            [&](const Access& a, const Access& b) { return instruction(a) < instruction(b); });
  for (size_t first = 0; first < accesses.size();) {
    std::map<uintptr_t, uint32_t> sectors;  // and the bytes of each, as bits
    size_t next = first;
    for (; next < accesses.size() && instruction(accesses[next]) == instruction(accesses[first]);
         ++next) {
      const Access& access = accesses[next];
      for (uintptr_t byte = access.begin; byte < access.begin + access.bytes; ++byte) {
        sectors[byte / kSector] |= 1u << (byte % kSector);
      }
    }
    long long bytes = 0;
    for (const auto& [sector, mask] : sectors) {
      bytes += count_bits(mask);
    }
    const auto touched = static_cast<long long>(sectors.size());
    const long long fewest = (bytes + static_cast<long long>(kSector) - 1) / kSector;
    const bool is_read = accesses[first].kind == AccessKind::kRead;
    (is_read ? traffic_.read : traffic_.written) += touched;
    (is_read ? traffic_.fewest_read : traffic_.fewest_written) += fewest;
    first = next;
  }
}

}  // namespace recsys::emulator
