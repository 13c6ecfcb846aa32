// SPDX-License-Identifier: Apache-2.0
// Prefetches memory that later samples will read, line by line, while this one is computed.
#pragma once

#include "vector.h"

namespace recsys::cpu::RECSYS_ISA {

// A CPU has some twenty lines in flight: prefetching a whole sample at once would stall it as
// reading it would. Kernels call step() in their inner loops instead.
class PrefetchQueue {
 public:
  void add(const void* from, int64_t bytes) {
    Segment& segment = segments_[num_segments_++];
    segment.line = static_cast<const char*>(from);
    segment.end = segment.line + bytes;
  }

  // Prefetches the next line, if any is left.
  RECSYS_INLINE void step() {
    if (next_ == num_segments_) return;
    Segment& segment = segments_[next_];
    __builtin_prefetch(segment.line);
    segment.line += kCacheLine;
    if (segment.line >= segment.end) ++next_;
  }

  // Prefetches all that is left, and forgets it.
  void finish() {
    while (next_ < num_segments_) step();
    next_ = num_segments_ = 0;
  }

 private:
  static constexpr int kMaxSegments = 80;

  struct Segment {
    const char* line;
    const char* end;
  };

  Segment segments_[kMaxSegments];
  int num_segments_ = 0;
  int next_ = 0;
};

}  // namespace recsys::cpu::RECSYS_ISA
