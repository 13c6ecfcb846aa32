// SPDX-License-Identifier: Apache-2.0
// Registers ops through LibTorch's stable ABI: one binary serves torch 2.11 and later, with and
// without CUDA. Each op's schema is beside its C++ entry, in the ops.cpp of its folder; the
// meanings are in cuda_ext/reference.py, fake kernels and autograd in cuda_ext/ops.
#pragma once

#include <torch/csrc/stable/library.h>

// The emulator's build of the CUDA kernels is a library beside the real one, for tests.
#ifdef RECSYS_EMULATOR
#define RECSYS_NAMESPACE cuda_ext_emulated
#else
#define RECSYS_NAMESPACE cuda_ext
#endif
#define RECSYS_EXPAND(macro, ...) macro(__VA_ARGS__)

// Followed by a body that calls library.def for each op of a source.
#define RECSYS_SCHEMAS(library) \
  RECSYS_EXPAND(STABLE_TORCH_LIBRARY_FRAGMENT, RECSYS_NAMESPACE, library)

// Calls register_kernels(library) for each kind of tensor.
#ifdef RECSYS_CUDA
#define RECSYS_REGISTER(register_kernels)                                     \
  RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CPU, library) {  \
    register_kernels(library);                                                \
  }                                                                           \
  RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CUDA, library) { \
    register_kernels(library);                                                \
  }
#else
#define RECSYS_REGISTER(register_kernels)                                    \
  RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CPU, library) { \
    register_kernels(library);                                               \
  }
#endif
