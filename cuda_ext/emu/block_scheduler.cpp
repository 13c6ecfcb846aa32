// SPDX-License-Identifier: Apache-2.0
#include "block_scheduler.h"

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "global_memory.h"
#include "race_clocks.h"

uint3 threadIdx{};
uint3 blockIdx{};
dim3 blockDim;
dim3 gridDim;

namespace recsys::emulator {
namespace {

constexpr size_t kStackBytes = 128 * 1024;

enum class State { kReady, kAtWarpBarrier, kAtBlockBarrier, kDone };

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  State state = State::kReady;
  const char* operation = "";
  bool orders_memory = false;
  // Two, used in turn: a lane may enter the next exchange while another still reads this one.
  char shown[2][kExchangeBytes];
  unsigned exchanges = 0;
};

class Block {
 public:
  Block(int threads, size_t shared_bytes, const std::function<void()>& body,
        std::mt19937_64& random, std::vector<std::unique_ptr<Thread>>& pool, GlobalMemory& memory)
      : body_(body),
        random_(random),
        memory_(memory),
        threads_(pool),
        count_(threads),
        shared_bytes_(shared_bytes),
        // Its own heap block of the exact size, so that AddressSanitizer catches accesses outside
        // it. 0xFF is NaN.
        shared_(static_cast<char*>(::operator new(shared_bytes, std::align_val_t{16}))),
        clocks_(threads, shared_bytes) {
    std::memset(shared_, 0xFF, shared_bytes);
    while (static_cast<int>(pool.size()) < threads) {
      pool.push_back(std::make_unique<Thread>());
    }
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { ::operator delete(shared_, std::align_val_t{16}); }

  bool run(int block, int blocks);

  void wait(State state, const char* operation) {
    Thread& thread = current();
    thread.state = state;
    thread.operation = operation;
    swapcontext(&thread.context, &scheduler_);
  }

  // The thread stops here: after a fault it would only do damage.
  void stop_thread() { wait(State::kDone, ""); }

  Thread& current() { return *threads_[threadIdx.x]; }
  Thread& lane(int lane) { return *threads_[threadIdx.x / kWarp * kWarp + lane]; }
  int warp_end(int begin) const { return std::min(begin + kWarp, count_); }

  void record(const void* address, size_t bytes, bool is_write) {
    const size_t offset = static_cast<const char*>(address) - shared_;
    if (offset + bytes > shared_bytes_) {
      emulator::fail("thread " + std::to_string(threadIdx.x) +
                     " leaves dynamic shared memory at byte " + std::to_string(offset));
    }
    const std::string race = clocks_.access(threadIdx.x, offset, bytes, is_write);
    if (!race.empty()) {
      emulator::fail(race);
    }
  }

  void record_global(const void* address, size_t bytes, AccessKind kind) {
    const int thread = static_cast<int>(threadIdx.x);
    const int block = static_cast<int>(blockIdx.x);
    const std::string race = memory_.access(clocks_, block, thread, address, bytes, kind);
    if (!race.empty()) {
      emulator::fail(race);
    }
  }

  void fail(const std::string& message) {
    if (error_.empty()) {
      error_ = "block " + std::to_string(blockIdx.x) + ": " + message;
    }
  }
  const std::string& error() const { return error_; }
  char* shared() { return shared_; }

 private:
  static void enter();
  void start_threads();
  void release_barriers();
  bool release_warp(int begin);
  bool release_block();
  void release(int begin, int end, State state);
  std::string waiting_threads() const;

  const std::function<void()>& body_;
  std::mt19937_64& random_;
  GlobalMemory& memory_;
  std::vector<std::unique_ptr<Thread>>& threads_;
  int count_;
  size_t shared_bytes_;
  char* shared_;
  RaceClocks clocks_;
  ucontext_t scheduler_;
  std::vector<int> ready_;
  std::string error_;
};

Block* running = nullptr;
uint64_t seed = 1;
std::string last_error;

void Block::enter() {
  running->body_();
  running->current().state = State::kDone;
  swapcontext(&running->current().context, &running->scheduler_);
}

void Block::start_threads() {
  for (int i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, &Block::enter, 0);
    thread.state = State::kReady;
    thread.exchanges = 0;
    ready_.push_back(i);
  }
}

bool Block::run(int block, int blocks) {
  blockIdx = {static_cast<unsigned>(block), 0, 0};
  blockDim = dim3(count_);
  gridDim = dim3(blocks);
  running = this;
  start_threads();
  while (!ready_.empty() && error_.empty()) {
    const size_t chosen = random_() % ready_.size();
    std::swap(ready_[chosen], ready_.back());
    threadIdx = {static_cast<unsigned>(ready_.back()), 0, 0};
    ready_.pop_back();
    swapcontext(&scheduler_, &current().context);
    if (ready_.empty()) {
      release_barriers();
    } else if (current().state == State::kAtWarpBarrier) {
      release_warp(threadIdx.x / kWarp * kWarp);
    }
  }
  running = nullptr;
  return error_.empty();
}

void Block::release_barriers() {
  bool released = false;
  bool waiting = false;
  for (int begin = 0; begin < count_; begin += kWarp) {
    released = release_warp(begin) || released;
  }
  released = (!released && release_block()) || released;
  for (int i = 0; i < count_; ++i) {
    waiting = waiting || threads_[i]->state != State::kDone;
  }
  if (waiting && !released) {
    fail("deadlock, not all threads reach the same barrier:" + waiting_threads());
  }
}

// Releases a warp once all lanes that have not left the kernel wait in the same operation.
bool Block::release_warp(int begin) {
  const char* operation = nullptr;
  bool orders_memory = false;
  for (int i = begin; i < warp_end(begin); ++i) {
    const Thread& thread = *threads_[i];
    if (thread.state == State::kDone) {
      continue;
    }
    if (thread.state != State::kAtWarpBarrier ||
        (operation != nullptr && std::strcmp(operation, thread.operation) != 0)) {
      return false;
    }
    operation = thread.operation;
    orders_memory = thread.orders_memory;
  }
  if (operation == nullptr) {
    return false;
  }
  if (orders_memory) {
    clocks_.meet(begin, warp_end(begin));
  }
  release(begin, warp_end(begin), State::kAtWarpBarrier);
  return true;
}

bool Block::release_block() {
  bool any = false;
  for (int i = 0; i < count_; ++i) {
    if (threads_[i]->state == State::kAtWarpBarrier) {
      return false;
    }
    any = any || threads_[i]->state == State::kAtBlockBarrier;
  }
  if (any) {
    clocks_.meet(0, count_);
    release(0, count_, State::kAtBlockBarrier);
  }
  return any;
}

void Block::release(int begin, int end, State state) {
  for (int i = begin; i < end; ++i) {
    if (threads_[i]->state == state) {
      threads_[i]->state = State::kReady;
      ready_.push_back(i);
    }
  }
}

std::string Block::waiting_threads() const {
  std::string text;
  for (int i = 0; i < count_; ++i) {
    const Thread& thread = *threads_[i];
    const bool done = thread.state == State::kDone;
    const std::string what = done ? "left the kernel" : thread.operation;
    const bool as_before = i > 0 && done == (threads_[i - 1]->state == State::kDone) &&
                           (done || std::strcmp(thread.operation, threads_[i - 1]->operation) == 0);
    if (!as_before) {
      text += " [from thread " + std::to_string(i) + "] " + what;
    }
  }
  return text;
}

}  // namespace

bool run_blocks(int64_t blocks, int threads, size_t shared_bytes,
                const std::function<void()>& body) {
  static std::mutex one_launch;
  static std::vector<std::unique_ptr<Thread>> pool;
  const std::lock_guard<std::mutex> lock(one_launch);
  std::mt19937_64 random(seed);
  std::vector<int> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  GlobalMemory memory;
  for (const int index : order) {
    Block block(threads, shared_bytes, body, random, pool, memory);
    if (!block.run(index, static_cast<int>(blocks))) {
      last_error = block.error();
      return false;
    }
  }
  return true;
}

void wait_for_block() { running->wait(State::kAtBlockBarrier, "__syncthreads"); }

void wait_for_warp(const char* operation, const void* value, size_t bytes, bool orders_memory) {
  Thread& thread = running->current();
  if (bytes > 0) {
    std::memcpy(thread.shown[thread.exchanges % 2], value, bytes);
  }
  ++thread.exchanges;
  thread.orders_memory = orders_memory;
  running->wait(State::kAtWarpBarrier, operation);
}

const void* shown_by(int lane) {
  const unsigned mine = running->current().exchanges;
  return running->lane(lane).shown[(mine - 1) % 2];
}

bool took_part(int lane) {
  const unsigned thread = threadIdx.x / kWarp * kWarp + lane;
  return thread < blockDim.x && running->lane(lane).exchanges >= running->current().exchanges;
}

char* dynamic_shared_memory() { return running->shared(); }

void record_shared_access(const void* address, size_t bytes, bool is_write) {
  running->record(address, bytes, is_write);
}

void record_global_read(const void* address, size_t bytes) {
  running->record_global(address, bytes, AccessKind::kRead);
}
void record_global_write(void* address, size_t bytes) {
  running->record_global(address, bytes, AccessKind::kWrite);
}
void record_global_atomic(void* address, size_t bytes) {
  running->record_global(address, bytes, AccessKind::kAtomic);
}

void fail(const std::string& message) {
  running->fail(message);
  running->stop_thread();
  std::abort();  // a stopped thread is never resumed
}

}  // namespace recsys::emulator

__attribute__((visibility("default"))) void emulator_set_seed(unsigned long long seed) {
  recsys::emulator::seed = seed;
}

__attribute__((visibility("default"))) const char* emulator_last_error() {
  return recsys::emulator::last_error.c_str();
}
