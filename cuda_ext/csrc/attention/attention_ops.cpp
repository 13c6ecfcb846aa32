// SPDX-License-Identifier: Apache-2.0
// torch ops of attention over packed sequences, on the CPU.
#include <tuple>
#include <vector>

#include "../registration.h"
#include "../tensor_arguments.h"
#include "attention_arguments.h"

namespace recsys {
namespace {

// Bytes that a kernel may read beyond the draws of the last weight.
constexpr int64_t kDrawsPadding = 64;

void check_offsets(const Tensor& offsets, int64_t rows, const char* op, const char* name) {
  check_contiguous(offsets, op, name);
  STD_TORCH_CHECK(offsets.scalar_type() == ScalarType::Long && offsets.dim() == 1 &&
                      offsets.numel() >= 1 && !offsets.is_cuda(),
                  op, ": ", name, " must be [S + 1] int64");
  const int64_t* const values = static_cast<const int64_t*>(offsets.data_ptr());
  STD_TORCH_CHECK(values[0] == 0 && values[offsets.numel() - 1] == rows, op, ": ", name,
                  " must go from 0 to ", rows, ", the number of rows");
  for (int64_t s = 1; s < offsets.numel(); ++s) {
    STD_TORCH_CHECK(values[s] >= values[s - 1], op, ": ", name, " must not decrease");
  }
}

PackedRows columns_of(const Tensor& matrix, int64_t column) {
  const int64_t bytes = bytes_of(dtype_of(matrix, "attention", "fused"));
  return {static_cast<char*>(matrix.data_ptr()) + column * bytes, matrix.size(1)};
}

// The arguments that forward and backward share.
struct Inputs {
  Inputs(const std::optional<Tensor>& queries, const Tensor& fused, const Tensor& query_offsets,
         const Tensor& key_offsets, const std::optional<Tensor>& positions, bool causal,
         int64_t num_heads, const std::optional<Tensor>& draws, int64_t dropped_levels,
         const char* op) {
    check_contiguous(fused, op, "fused");
    const int64_t parts = queries.has_value() ? 2 : 3;
    STD_TORCH_CHECK(fused.dim() == 2 && num_heads >= 1 && fused.size(1) % (parts * num_heads) == 0,
                    op, ": fused must be [N, ", parts, " H E]");
    dim = fused.size(1) / parts;
    arguments.dtype = dtype_of(fused, op, "fused");
    num_queries = queries.has_value() ? queries->size(0) : fused.size(0);
    if (queries.has_value()) {
      optional_data<void>(queries, fused, fused.scalar_type(), num_queries * dim, op, "queries");
    }
    check_offsets(query_offsets, num_queries, op, "query_offsets");
    check_offsets(key_offsets, fused.size(0), op, "key_offsets");
    STD_TORCH_CHECK(query_offsets.numel() == key_offsets.numel(), op,
                    ": queries and keys must have the same number of sequences");
    STD_TORCH_CHECK(dropped_levels >= 0 && dropped_levels < 256, op,
                    ": dropped_levels must be 0 to 255");
    arguments.num_sequences = key_offsets.numel() - 1;
    arguments.num_heads = num_heads;
    arguments.head_dim = dim / num_heads;
    arguments.query_offsets = static_cast<const int64_t*>(query_offsets.data_ptr());
    arguments.key_offsets = static_cast<const int64_t*>(key_offsets.data_ptr());
    arguments.positions = optional_data<const int64_t>(positions, fused, ScalarType::Long,
                                                       num_queries, op, "positions");
    arguments.causal = causal;
    arguments.queries = queries.has_value() ? columns_of(*queries, 0) : columns_of(fused, 0);
    arguments.keys = columns_of(fused, (parts - 2) * dim);
    arguments.values = columns_of(fused, (parts - 1) * dim);
    arguments.dropped_levels = dropped_levels;
    check_sequences(op);
    if (draws.has_value()) {
      const int64_t bytes = draw_offsets.back() + kDrawsPadding;
      arguments.draws =
          optional_data<const uint8_t>(draws, fused, ScalarType::Byte, bytes, op, "draws");
      arguments.draw_offsets = draw_offsets.data();
    }
  }

  // Sets the numbers [2, Q, H] that forward keeps for backward.
  void set_softmax(const Tensor& softmax) {
    arguments.maxima = static_cast<float*>(softmax.data_ptr());
    arguments.factors = arguments.maxima + num_queries * arguments.num_heads;
  }

  AttentionArguments arguments{};
  int64_t dim;
  int64_t num_queries;
  std::vector<int64_t> draw_offsets{0};

 private:
  // A query sees at least one key, and none beyond its sequence.
  void check_sequences(const char* op) {
    for (int64_t s = 0; s < arguments.num_sequences; ++s) {
      const int64_t first = arguments.query_offsets[s];
      const int64_t queries = arguments.query_offsets[s + 1] - first;
      const int64_t keys = arguments.key_offsets[s + 1] - arguments.key_offsets[s];
      draw_offsets.push_back(draw_offsets.back() + arguments.num_heads * queries * keys);
      STD_TORCH_CHECK(queries == 0 || keys > 0, op, ": sequence ", s, " has queries, but no keys");
      if (!arguments.causal) continue;
      if (arguments.positions == nullptr) {
        STD_TORCH_CHECK(queries <= keys, op, ": sequence ", s, " has more queries than keys");
        continue;
      }
      for (int64_t q = first; q < first + queries; ++q) {
        STD_TORCH_CHECK(arguments.positions[q] >= 0 && arguments.positions[q] < keys, op,
                        ": query ", q, " has position ", arguments.positions[q],
                        " in a sequence of ", keys, " keys");
      }
    }
  }
};

std::tuple<Tensor, Tensor> attention(std::optional<Tensor> queries, const Tensor& fused,
                                     const Tensor& query_offsets, const Tensor& key_offsets,
                                     std::optional<Tensor> positions, bool causal,
                                     int64_t num_heads, std::optional<Tensor> draws,
                                     int64_t dropped_levels) {
  Inputs inputs(queries, fused, query_offsets, key_offsets, positions, causal, num_heads, draws,
                dropped_levels, "attention");
  Tensor output = torch::stable::new_empty(fused, {inputs.num_queries, inputs.dim});
  Tensor softmax =
      torch::stable::new_empty(fused, {2, inputs.num_queries, num_heads}, ScalarType::Float);
  inputs.arguments.output = columns_of(output, 0);
  inputs.set_softmax(softmax);
  cpu::run_attention(inputs.arguments);
  return {output, softmax};
}

std::tuple<Tensor, Tensor> attention_backward(const Tensor& gradient, const Tensor& softmax,
                                              std::optional<Tensor> queries, const Tensor& fused,
                                              const Tensor& query_offsets,
                                              const Tensor& key_offsets,
                                              std::optional<Tensor> positions, bool causal,
                                              int64_t num_heads, std::optional<Tensor> draws,
                                              int64_t dropped_levels) {
  const char* const op = "attention_backward";
  Inputs inputs(queries, fused, query_offsets, key_offsets, positions, causal, num_heads, draws,
                dropped_levels, op);
  const int64_t count = inputs.num_queries;
  optional_data<void>(gradient, fused, fused.scalar_type(), count * inputs.dim, op, "gradient");
  optional_data<void>(softmax, fused, ScalarType::Float, 2 * count * num_heads, op, "softmax");
  Tensor to_fused = torch::stable::new_empty(fused, {fused.size(0), fused.size(1)});
  Tensor to_queries =
      torch::stable::new_empty(fused, {queries.has_value() ? count : 0, inputs.dim});
  AttentionArguments& arguments = inputs.arguments;
  inputs.set_softmax(softmax);
  arguments.output = columns_of(gradient, 0);
  const int64_t first = queries.has_value() ? 0 : inputs.dim;
  arguments.to_queries = columns_of(queries.has_value() ? to_queries : to_fused, 0);
  arguments.to_keys = columns_of(to_fused, first);
  arguments.to_values = columns_of(to_fused, first + inputs.dim);
  cpu::run_attention_backward(arguments);
  return {to_queries, to_fused};
}

}  // namespace
}  // namespace recsys

static const recsys::Op kOps[] = {
    {"attention(Tensor? queries, Tensor fused, Tensor query_offsets, Tensor key_offsets,"
     " Tensor? positions, bool causal, int num_heads, Tensor? draws, int dropped_levels)"
     " -> (Tensor, Tensor)",
     TORCH_BOX(&recsys::attention)},
    {"attention_backward(Tensor gradient, Tensor softmax, Tensor? queries, Tensor fused,"
     " Tensor query_offsets, Tensor key_offsets, Tensor? positions, bool causal, int num_heads,"
     " Tensor? draws, int dropped_levels) -> (Tensor, Tensor)",
     TORCH_BOX(&recsys::attention_backward)},
};

RECSYS_REGISTER_ON_CPU(kOps)
