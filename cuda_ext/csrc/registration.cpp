// SPDX-License-Identifier: Apache-2.0
// Registers the ops through LibTorch's stable ABI: one binary serves torch 2.11 and later, with and
// without CUDA. Fake kernels and autograd are registered in cuda_ext/ops.
#include <torch/csrc/stable/library.h>

#include "backends.h"
#include "embedding_ops.h"
#include "interaction_ops.h"

// The emulator's build of the CUDA kernels is a library beside the real one, for tests.
#ifdef RECSYS_EMULATOR
#define RECSYS_LIBRARY(library) STABLE_TORCH_LIBRARY(cuda_ext_emulated, library)
#define RECSYS_LIBRARY_IMPL(key, library) STABLE_TORCH_LIBRARY_IMPL(cuda_ext_emulated, key, library)
#else
#define RECSYS_LIBRARY(library) STABLE_TORCH_LIBRARY(cuda_ext, library)
#define RECSYS_LIBRARY_IMPL(key, library) STABLE_TORCH_LIBRARY_IMPL(cuda_ext, key, library)
#endif

RECSYS_LIBRARY(library) {
  library.def(
      "dot_interaction(Tensor features, Tensor? bottom, bool self_interaction, bool allow_tf32)"
      " -> Tensor");
  library.def(
      "dot_interaction_backward(Tensor gradient, Tensor features, Tensor? bottom,"
      " bool self_interaction, bool allow_tf32) -> (Tensor, Tensor)");
  library.def(
      "gather_dot_interaction(Tensor table, Tensor rows, Tensor bottom, Tensor? anchor,"
      " bool self_interaction, bool allow_tf32) -> Tensor");
  library.def(
      "gather_dot_interaction_backward(Tensor gradient, Tensor table, Tensor rows, Tensor bottom,"
      " bool self_interaction, bool allow_tf32) -> (Tensor, Tensor)");
  library.def(
      "joint_rows(Tensor ids, Tensor offsets, Tensor? bag_offsets, bool hash_indices,"
      " ScalarType dtype) -> Tensor");
  library.def(
      "joint_rows_reporting(Tensor ids, Tensor offsets, Tensor? bag_offsets, Tensor(a!) bad,"
      " bool hash_indices, ScalarType dtype) -> Tensor");
  library.def(
      "embedding_gather(Tensor table, Tensor rows, Tensor? anchor, ScalarType dtype) -> Tensor");
  library.def(
      "embedding_bag(Tensor table, Tensor rows, Tensor bag_offsets, Tensor? scale, Tensor? anchor,"
      " ScalarType dtype) -> Tensor");
  library.def(
      "embedding_bag_scale_backward(Tensor gradient, Tensor table, Tensor rows, Tensor source)"
      " -> Tensor");
  library.def("sort_rows(Tensor rows, int num_table_rows) -> (Tensor, Tensor)");
  library.def(
      "update_rows(Tensor(a!) table, Tensor(b!)? table_low, Tensor(c!)[] state,"
      " Tensor sorted_rows, Tensor positions, Tensor gradients,"
      " Tensor? source, Tensor? scale, Tensor lr, Tensor step, Tensor? inverse_scale,"
      " Tensor? overflow, str rule, float weight_decay, float[] hyperparameters,"
      " int rounding_seed) -> ()");
  library.def(
      "sgd_rows_unsorted(Tensor(a!) table, Tensor rows, Tensor gradients, Tensor? source,"
      " Tensor? scale, Tensor lr, Tensor? inverse_scale, Tensor? overflow) -> ()");
  library.def("cpu_instruction_set() -> str");
}

namespace {

void register_kernels(torch::stable::detail::StableLibrary& library) {
  library.impl("dot_interaction", TORCH_BOX(&recsys::dot_interaction));
  library.impl("dot_interaction_backward", TORCH_BOX(&recsys::dot_interaction_backward));
  library.impl("gather_dot_interaction", TORCH_BOX(&recsys::gather_dot_interaction));
  library.impl("gather_dot_interaction_backward",
               TORCH_BOX(&recsys::gather_dot_interaction_backward));
  library.impl("joint_rows", TORCH_BOX(&recsys::joint_rows));
  library.impl("joint_rows_reporting", TORCH_BOX(&recsys::joint_rows_reporting));
  library.impl("embedding_gather", TORCH_BOX(&recsys::embedding_gather));
  library.impl("embedding_bag", TORCH_BOX(&recsys::embedding_bag));
  library.impl("embedding_bag_scale_backward", TORCH_BOX(&recsys::embedding_bag_scale_backward));
  library.impl("sort_rows", TORCH_BOX(&recsys::sort_rows));
  library.impl("update_rows", TORCH_BOX(&recsys::update_rows));
  library.impl("sgd_rows_unsorted", TORCH_BOX(&recsys::sgd_rows_unsorted));
}

std::string cpu_instruction_set() {
#ifdef RECSYS_EMULATOR
  return "emulated CUDA";
#else
  return recsys::cpu::instruction_set();
#endif
}

}  // namespace

RECSYS_LIBRARY_IMPL(CompositeExplicitAutograd, library) {
  library.impl("cpu_instruction_set", TORCH_BOX(&cpu_instruction_set));
}

RECSYS_LIBRARY_IMPL(CPU, library) { register_kernels(library); }

#ifdef RECSYS_CUDA
RECSYS_LIBRARY_IMPL(CUDA, library) { register_kernels(library); }
#endif
