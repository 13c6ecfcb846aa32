// SPDX-License-Identifier: Apache-2.0
// The emulator's device functions for what csrc/cuda/intrinsics.cuh writes in PTX.
#pragma once

#include "conversions.h"
#include "shared_pointer.h"
#include "tensor_core.h"

namespace recsys {

template <typename T>
__forceinline__ T load_global(const T* address) {
  emulator::record_global_read(address, sizeof(T));
  return *address;
}
template <typename T>
__forceinline__ void store_global(T* address, const T& value) {
  emulator::record_global_write(address, sizeof(T));
  *address = value;
}

// As atomic operations: all threads write the same.
__forceinline__ void raise_flag(bool* flag) {
  emulator::record_global_atomic(flag, sizeof(*flag));
  *flag = true;
}

template <typename T>
__forceinline__ Vector load_vector(const T* address) {
  emulator::check_alignment(address);
  return load_global(reinterpret_cast<const Vector*>(address));
}
template <typename T>
__forceinline__ void store_vector(T* address, const Vector& vector) {
  emulator::check_alignment(address);
  store_global(reinterpret_cast<Vector*>(address), vector);
}
template <typename T>
__forceinline__ void store_global_vector(T* address, const Vector& vector) {
  store_vector(address, vector);
}

}  // namespace recsys
