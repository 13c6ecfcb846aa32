// SPDX-License-Identifier: Apache-2.0
// mma.sync of a warp, with the register layout of the PTX manual (section on m16n8k8 and m16n8k16).
// Lane 4 g + t holds rows g and g + 8 of A and C, and column g of B.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "block_scheduler.h"
#include "conversions.h"

namespace recsys {
namespace emulator {

struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
};
static_assert(sizeof(Fragments) <= kExchangeBytes);

// Number `i` of a register. The device ignores the low 13 bits of tf32.
template <typename T>
double number_in(uint32_t word, int i) {
  if constexpr (std::is_same_v<T, float>) {
    return __uint_as_float(word & ~0x1fffu);
  } else {
    return to_float(T{static_cast<uint16_t>(word >> (16 * i))});
  }
}

// Numbers of K that a register holds.
template <typename T>
constexpr int kPerRegister = static_cast<int>(4 / sizeof(T));

template <typename T>
double element_of_a(const Fragments* lanes, int row, int k) {
  const int half = k / (4 * kPerRegister<T>);  // registers 2 and 3 hold the second half of K
  const int lane = row % 8 * 4 + k / kPerRegister<T> % 4;
  return number_in<T>(lanes[lane].a[2 * half + row / 8], k % kPerRegister<T>);
}

template <typename T>
double element_of_b(const Fragments* lanes, int k, int column) {
  const int half = k / (4 * kPerRegister<T>);
  const int lane = column * 4 + k / kPerRegister<T> % 4;
  return number_in<T>(lanes[lane].b[half], k % kPerRegister<T>);
}

}  // namespace emulator

// Sums in double and rounds once; the device rounds somewhat more often.
template <typename T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  using namespace emulator;
  const Fragments mine{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  wait_for_warp("multiply_add", &mine, sizeof(mine), false);
  Fragments lanes[kWarp];
  for (int lane = 0; lane < kWarp; ++lane) {
    if (!took_part(lane)) {
      fail("multiply_add without lane " + std::to_string(lane));
    }
    std::memcpy(&lanes[lane], shown_by(lane), sizeof(Fragments));
  }
  const int lane = own_lane();
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2);
    const int column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 8 * kPerRegister<T>; ++k) {
      sum += element_of_a<T>(lanes, row, k) * element_of_b<T>(lanes, k, column);
    }
    c[i] = static_cast<float>(sum);
  }
}

}  // namespace recsys
