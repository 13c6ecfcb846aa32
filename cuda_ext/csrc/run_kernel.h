// SPDX-License-Identifier: Apache-2.0
// Sends a kernel's arguments to the backend of the tensors: CPU, CUDA if it was compiled in, or the
// emulator of the CUDA kernels in its own build.
#pragma once

#include "tensor_arguments.h"

#ifdef RECSYS_CUDA
// Only libtorch_cuda has it: weak, so that the same binary loads into a torch without CUDA.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

namespace recsys {

inline void check_launch(int status, const char* op) {
  STD_TORCH_CHECK(status == 0, op, ": the kernel could not be launched, CUDA error ", status);
}

#ifdef RECSYS_CUDA
inline void* current_stream(const Tensor& tensor) {
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr,
                  "cuda_ext: this torch has no CUDA, but a tensor is on a CUDA device");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return stream;
}
#endif

// Whether kernels of `recsys::device` take this tensor.
inline bool runs_on_device([[maybe_unused]] const Tensor& tensor) {
#if defined(RECSYS_EMULATOR)
  return true;
#elif defined(RECSYS_CUDA)
  return tensor.is_cuda();
#else
  return false;
#endif
}

#if defined(RECSYS_EMULATOR)
#define RECSYS_RUN_ON_DEVICE(op, tensor, arguments) \
  ::recsys::check_launch(::recsys::device::op(arguments, nullptr), #op)
#elif defined(RECSYS_CUDA)
#define RECSYS_RUN_ON_DEVICE(op, tensor, arguments)                                           \
  do {                                                                                        \
    const torch::stable::accelerator::DeviceGuard guard((tensor).get_device_index());         \
    ::recsys::check_launch(::recsys::device::op(arguments, ::recsys::current_stream(tensor)), \
                           #op);                                                              \
  } while (false)
#else
#define RECSYS_RUN_ON_DEVICE(op, tensor, arguments) \
  STD_TORCH_CHECK(false, #op, ": built without CUDA")
#endif

#if defined(RECSYS_EMULATOR)
#define RECSYS_RUN(op, tensor, arguments) RECSYS_RUN_ON_DEVICE(op, tensor, arguments)
#define RECSYS_WORKSPACE_BYTES(query, tensor, arguments) ::recsys::device::query(arguments)
#elif defined(RECSYS_CUDA)
#define RECSYS_RUN(op, tensor, arguments)          \
  do {                                             \
    if ((tensor).is_cuda()) {                      \
      RECSYS_RUN_ON_DEVICE(op, tensor, arguments); \
    } else {                                       \
      ::recsys::cpu::op(arguments);                \
    }                                              \
  } while (false)
#define RECSYS_WORKSPACE_BYTES(query, tensor, arguments) \
  ((tensor).is_cuda() ? ::recsys::device::query(arguments) : ::recsys::cpu::query(arguments))
#else
#define RECSYS_RUN(op, tensor, arguments) ::recsys::cpu::op(arguments)
#define RECSYS_WORKSPACE_BYTES(query, tensor, arguments) ::recsys::cpu::query(arguments)
#endif

}  // namespace recsys
