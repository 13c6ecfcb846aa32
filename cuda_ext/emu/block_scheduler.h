// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a launch on the CPU. The threads of a block are fibers of one OS thread, and
// between two barriers they run in a random order that the seed determines, so code that relies on
// an order fails under some seed. A barrier that some threads do not reach ends the launch with an
// error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

// Chooses the order of threads and blocks of later launches.
extern "C" void emulator_set_seed(unsigned long long seed);

// Returns what the last failed launch did wrong, "" if none has failed.
extern "C" const char* emulator_last_error();

// CUDA's types and variables of these names. The scheduler sets them before a thread runs.
struct dim3 {
  unsigned x;
  unsigned y = 1;
  unsigned z = 1;
  constexpr dim3(unsigned size = 1) : x(size) {}
};
struct uint3 {
  unsigned x;
  unsigned y;
  unsigned z;
};
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace recsys::emulator {

constexpr int kWarp = 32;

// Most bytes that a lane passes to the others in one exchange.
constexpr size_t kExchangeBytes = 32;

// Runs `body` for every thread. Returns whether it succeeded.
bool run_blocks(int64_t blocks, int threads, size_t shared_bytes,
                const std::function<void()>& body);

// Running threads call the rest.

void wait_for_block();

// Waits until every lane of the warp has called the same operation; `bytes` of `value` are then
// visible to all through `shown_by` until the next exchange of this lane.
void wait_for_warp(const char* operation, const void* value, size_t bytes, bool orders_memory);

// Returns what a lane passed to the last exchange in which this thread took part.
const void* shown_by(int lane);

// Whether that lane took part; a lane that has left the kernel does not.
bool took_part(int lane);

char* dynamic_shared_memory();

// Reports an access to shared memory, to find two accesses that no barrier separates.
void record_shared_access(const void* address, size_t bytes, bool is_write);

// Reports an access to global memory, to find two accesses that nothing orders.
void record_global_read(const void* address, size_t bytes);
void record_global_write(void* address, size_t bytes);
void record_global_atomic(void* address, size_t bytes);

// Makes the launch fail and ends this thread; the first message is kept.
[[noreturn]] void fail(const std::string& message);

}  // namespace recsys::emulator
