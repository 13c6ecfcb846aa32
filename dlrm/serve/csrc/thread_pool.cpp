// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

namespace recsys::serve {

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      threads_.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    stop();  // threads that run must end before they are destroyed
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
