// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include <stdexcept>
#include <string>
#include <system_error>

namespace recsys::serve {

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      threads_.emplace_back([this, thread] { work(thread); });
    }
  } catch (const std::system_error& error) {
    const size_t given = threads_.size() + 1;
    stop();  // those that run must end before they are forgotten
    throw std::runtime_error("`threads` " + std::to_string(num_threads) +
                             ": the system gives this process " + std::to_string(given) + " (" +
                             error.what() +
                             "); take fewer, or raise its limit (`ulimit -u`, `ulimit -v`)");
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t, int)>& body) {
  if (threads_.empty() || count <= 1) {
    for (int64_t task = 0; task < count; ++task) body(task, 0);
    return;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  body_ = &body;
  next_ = 0;
  count_ = unfinished_ = count;
  wake_.notify_all();
  take_tasks(lock, 0);
  done_.wait(lock, [this] { return unfinished_ == 0; });
  body_ = nullptr;
}

void ThreadPool::work(int thread) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stops_ || next_ < count_; });
    if (stops_) return;
    take_tasks(lock, thread);
  }
}

void ThreadPool::take_tasks(std::unique_lock<std::mutex>& lock, int thread) {
  while (next_ < count_) {
    const int64_t task = next_++;
    const std::function<void(int64_t, int)>& body = *body_;
    lock.unlock();
    body(task, thread);
    lock.lock();
    if (--unfinished_ == 0) done_.notify_one();
  }
}

}  // namespace recsys::serve
