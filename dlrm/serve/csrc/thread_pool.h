// SPDX-License-Identifier: Apache-2.0
// Threads of one instance.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace recsys::serve {

// Runs tasks on a fixed number of threads, including the caller's.
class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls body(task, thread) for each task in [0, count) and returns when all are done. The body
  // must not throw.
  void run(int64_t count, const std::function<void(int64_t task, int thread)>& body);

 private:
  void stop();
  void work(int thread);
  // Runs tasks until none are left. The lock must be held, and is held on return.
  void take_tasks(std::unique_lock<std::mutex>& lock, int thread);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  int64_t next_ = 0;
  int64_t count_ = 0;
  int64_t unfinished_ = 0;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recsys::serve
