// SPDX-License-Identifier: Apache-2.0
// A checksum of text that arrives in blocks of any size; detects whether a text has changed.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace clicks {

// Four lanes take turns, each with a word of 8 bytes. A step maps words to states of a lane one to
// one, so no change of a single word can go undetected.
class TextChecksum {
 public:
  void add(const uint8_t* text, size_t size) {
    total_ += size;
    if (held_ > 0) {
      const size_t count = std::min(size, sizeof(block_) - held_);
      std::memcpy(block_ + held_, text, count);
      held_ += count;
      text += count;
      size -= count;
      if (held_ < sizeof(block_)) return;
      step(block_);
      held_ = 0;
    }
    for (; size >= sizeof(block_); text += sizeof(block_), size -= sizeof(block_)) step(text);
    std::memcpy(block_, text, size);
    held_ = size;
  }

  uint64_t value() const {
    TextChecksum end = *this;
    std::memset(end.block_ + held_, 0, sizeof(block_) - held_);
    end.step(end.block_);
    uint64_t value = total_;
    for (const uint64_t lane : end.lanes_) value = mixed(value ^ mixed(lane));
    return value;
  }

 private:
  static constexpr int kLanes = 4;

  static uint64_t mixed(uint64_t x) {
    x *= 0xd6e8feb86659fd93;
    return x ^ x >> 32;
  }

  void step(const uint8_t* block) {
    for (int i = 0; i < kLanes; ++i) {
      uint64_t word;
      std::memcpy(&word, block + i * sizeof(word), sizeof(word));
      const uint64_t x = (lanes_[i] ^ word) * 0x9e3779b97f4a7c15;
      lanes_[i] = x << 29 | x >> 35;
    }
  }

  uint64_t lanes_[kLanes] = {1, 2, 3, 4};
  uint8_t block_[kLanes * sizeof(uint64_t)] = {};
  size_t held_ = 0;
  uint64_t total_ = 0;
};

}  // namespace clicks
