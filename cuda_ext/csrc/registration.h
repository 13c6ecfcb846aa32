// SPDX-License-Identifier: Apache-2.0
// Registers ops through LibTorch's stable ABI: one binary serves torch 2.11 and later, with and
// without CUDA. Each op's schema is next to its C++ entry, in a file that ends in _op.cpp or
// _ops.cpp; cuda_ext/reference.py defines the ops, cuda_ext/ops has fake kernels and autograd.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string>

namespace recsys {

// An op as it is registered with torch.
struct Op {
  const char* schema;
  void (*entry)(StableIValue*, uint64_t, uint64_t);  // TORCH_BOX of a function, or null
};

template <int kOps>
void define_ops(torch::stable::detail::StableLibrary& library, const Op (&ops)[kOps]) {
  for (const Op& op : ops) library.def(op.schema);
}

template <int kOps>
void implement_ops(torch::stable::detail::StableLibrary& library, const Op (&ops)[kOps]) {
  for (const Op& op : ops) {
    const std::string schema = op.schema;
    library.impl(schema.substr(0, schema.find('(')).c_str(), op.entry);
  }
}

}  // namespace recsys

// The emulator's build of the CUDA kernels is a second library, for tests.
#ifdef RECSYS_EMULATOR
#define RECSYS_NAMESPACE cuda_ext_emulated
#else
#define RECSYS_NAMESPACE cuda_ext
#endif
#define RECSYS_EXPAND(macro, ...) macro(__VA_ARGS__)

#define RECSYS_DEFINE(ops)                                                  \
  RECSYS_EXPAND(STABLE_TORCH_LIBRARY_FRAGMENT, RECSYS_NAMESPACE, library) { \
    ::recsys::define_ops(library, ops);                                     \
  }
#define RECSYS_IMPLEMENT(key, ops)                                           \
  RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, key, library) { \
    ::recsys::implement_ops(library, ops);                                   \
  }

// Registers ops for tensors of every kind, only of a CPU, or only of a device.
#define RECSYS_REGISTER_ON_CPU(ops) \
  RECSYS_DEFINE(ops)                \
  RECSYS_IMPLEMENT(CPU, ops)
#if defined(RECSYS_EMULATOR)
#define RECSYS_REGISTER_ON_DEVICE(ops) RECSYS_REGISTER_ON_CPU(ops)
#define RECSYS_REGISTER(ops) RECSYS_REGISTER_ON_CPU(ops)
#elif defined(RECSYS_CUDA)
#define RECSYS_REGISTER_ON_DEVICE(ops) \
  RECSYS_DEFINE(ops)                   \
  RECSYS_IMPLEMENT(CUDA, ops)
#define RECSYS_REGISTER(ops)  \
  RECSYS_REGISTER_ON_CPU(ops) \
  RECSYS_IMPLEMENT(CUDA, ops)
#else
#define RECSYS_REGISTER_ON_DEVICE(ops) RECSYS_DEFINE(ops)
#define RECSYS_REGISTER(ops) RECSYS_REGISTER_ON_CPU(ops)
#endif
