// SPDX-License-Identifier: Apache-2.0
// Pointers to dynamic shared memory that report every access to the scheduler.
#pragma once

#include <cstdint>
#include <string>

#include "../csrc/cuda/number_types.cuh"
#include "block_scheduler.h"

namespace recsys {
namespace emulator {

inline void check_alignment(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % sizeof(Vector) != 0) {
    fail("misaligned address of a vector, thread " + std::to_string(threadIdx.x));
  }
}

template <typename T>
class SharedReference {
 public:
  explicit SharedReference(T* address) : address_(address) {}
  operator T() const {
    record_shared_access(address_, sizeof(T), false);
    return *address_;
  }
  void operator=(const T& value) const {
    record_shared_access(address_, sizeof(T), true);
    *address_ = value;
  }

 private:
  T* address_;
};

}  // namespace emulator

template <typename T>
class SharedPointer {
 public:
  explicit SharedPointer(T* address) : address_(address) {}
  emulator::SharedReference<T> operator[](int64_t i) const {
    return emulator::SharedReference<T>(address_ + i);
  }
  SharedPointer operator+(int64_t i) const { return SharedPointer(address_ + i); }
  T* address() const { return address_; }

 private:
  T* address_;
};

template <typename T>
SharedPointer<T> dynamic_shared() {
  return SharedPointer<T>(reinterpret_cast<T*>(emulator::dynamic_shared_memory()));
}

template <typename T>
Vector load_vector(SharedPointer<T> pointer) {
  emulator::check_alignment(pointer.address());
  emulator::record_shared_access(pointer.address(), sizeof(Vector), false);
  return *reinterpret_cast<const Vector*>(pointer.address());
}

template <typename T>
void store_vector(SharedPointer<T> pointer, const Vector& vector) {
  emulator::check_alignment(pointer.address());
  emulator::record_shared_access(pointer.address(), sizeof(Vector), true);
  *reinterpret_cast<Vector*>(pointer.address()) = vector;
}

}  // namespace recsys
