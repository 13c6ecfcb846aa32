// SPDX-License-Identifier: Apache-2.0
// The emulator's device functions for what csrc/cuda/intrinsics.cuh writes in PTX.
#pragma once

#include "conversions.h"
#include "shared_pointer.h"
#include "tensor_core.h"

namespace recsys {

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

template <typename T>
void store_global_vector(T* address, const Vector& vector) {
  store_vector(address, vector);
}

inline void atomic_add_vector(float* address, const float (&values)[4]) {
  emulator::check_alignment(address);
  for (int i = 0; i < 4; ++i) {
    atomicAdd(address + i, values[i]);
  }
}

}  // namespace recsys
