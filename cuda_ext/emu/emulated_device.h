// SPDX-License-Identifier: Apache-2.0
// portable.h for the emulator: the same names, run on the CPU.
#pragma once

#include <cmath>
#include <cstring>

#include "block_scheduler.h"
#include "rounding.h"
#include "shared_pointer.h"
#include "tensor_core.h"

#define RECSYS_KERNEL(name) inline void name
#define RECSYS_BOUNDED_KERNEL(name, threads, blocks) inline void name
#define RECSYS_DEVICE inline
#define RECSYS_HOST_DEVICE static inline
#define RECSYS_SHARED static
#define RECSYS_LAUNCH(kernel, ...) ::recsys::launch(#kernel, kernel, __VA_ARGS__)

namespace recsys {

template <typename... Parameters, typename... Arguments>
int launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
           size_t shared_bytes, void* /*stream*/, const Arguments&... arguments) {
  return emulator::run_blocks(name, blocks, threads, shared_bytes, [&] { kernel(arguments...); });
}

// Few, so that the blocks of a fixed grid take several pieces of work each.
template <typename... Parameters>
int64_t resident_blocks(void (*)(Parameters...), int /*threads*/, size_t /*shared_bytes*/) {
  return 3;
}

inline int thread_index() { return emulator::place().thread; }
inline int block_index() { return emulator::place().block; }
inline int block_size() { return emulator::place().threads; }
inline int grid_size() { return emulator::place().blocks; }

inline void sync_warp() { emulator::wait_for_warp("sync_warp", nullptr, 0, true); }
inline void sync_block() { emulator::wait_for_block(); }

namespace emulator {

template <typename T>
T exchange(const char* operation, T value, int from) {
  wait_for_warp(operation, &value, sizeof(T), false);
  T received = value;
  if (!took_part(from)) {
    fail(std::string(operation) + " reads lane " + std::to_string(from) +
         ", which has left the kernel");
  }
  std::memcpy(&received, shown_by(from), sizeof(T));
  return received;
}

inline int own_lane() { return place().thread % kWarp; }

}  // namespace emulator

template <typename T>
T shuffle(T value, int lane) {
  return emulator::exchange("shuffle", value, lane % emulator::kWarp);
}
template <typename T>
T shuffle_xor(T value, int mask) {
  return emulator::exchange("shuffle_xor", value, emulator::own_lane() ^ mask);
}
template <typename T>
T shuffle_down(T value, int distance) {
  const int from = emulator::own_lane() + distance;
  return emulator::exchange("shuffle_down", value,
                            from < emulator::kWarp ? from : emulator::own_lane());
}
inline uint32_t ballot(bool vote) {
  emulator::wait_for_warp("ballot", &vote, sizeof(vote), false);
  uint32_t votes = 0;
  for (int lane = 0; lane < emulator::kWarp; ++lane) {
    if (emulator::took_part(lane) && *static_cast<const bool*>(emulator::shown_by(lane))) {
      votes |= 1u << lane;
    }
  }
  return votes;
}

template <typename T>
Vector load_vector(const T* address) {
  emulator::check_alignment(address);
  return *reinterpret_cast<const Vector*>(address);
}
template <typename T>
void store_vector(T* address, const Vector& vector) {
  emulator::check_alignment(address);
  *reinterpret_cast<Vector*>(address) = vector;
}

inline void atomic_add(float* address, float value) { *address += value; }
inline void atomic_add_vector(float* address, const float (&values)[4]) {
  emulator::check_alignment(address);
  for (int i = 0; i < 4; ++i) {
    address[i] += values[i];
  }
}
inline void atomic_min(int64_t* address, int64_t value) {
  *address = value < *address ? value : *address;
}

}  // namespace recsys
