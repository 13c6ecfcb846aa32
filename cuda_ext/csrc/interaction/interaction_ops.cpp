// SPDX-License-Identifier: Apache-2.0
// torch ops of the dot interaction: shapes are checked and outputs made here, on every backend.
#include <tuple>

#include "../ops.h"
#include "../registration.h"
#include "../row_checks.h"
#include "../run_kernel.h"
#include "interaction_arguments.h"

namespace recsys {
namespace {

constexpr int64_t kMaxVectors = 64;
constexpr int64_t kMaxDim = 256;
constexpr int64_t kPadMultiple = 8;

using torch::stable::new_empty;

int64_t interaction_width(int64_t num_vectors, int64_t dim) {
  const int64_t pairs = num_vectors * (num_vectors - 1) / 2;
  return (dim + pairs + kPadMultiple - 1) / kPadMultiple * kPadMultiple;
}

// Fills in what every sample has: vector 0, which is passed separately, and the sizes.
void set_samples(InteractionArguments& arguments, const Tensor& bottom, int64_t batch,
                 int64_t num_vectors, int64_t dim, bool allow_tf32, const char* op) {
  STD_TORCH_CHECK(num_vectors >= 1 && num_vectors <= kMaxVectors, op, ": 1 to ", kMaxVectors,
                  " vectors a sample, got ", num_vectors);
  STD_TORCH_CHECK(dim >= 1 && dim <= kMaxDim, op, ": 1 to ", kMaxDim, " columns a vector, got ",
                  dim);
  STD_TORCH_CHECK(bottom.dim() == 2 && bottom.size(0) == batch && bottom.size(1) == dim, op,
                  ": bottom must be [", batch, ", ", dim, "]");
  STD_TORCH_CHECK(bottom.stride(1) == 1 || dim == 1, op, ": rows of bottom must be contiguous");
  arguments.dtype = dtype_of(bottom, op, "bottom");
  arguments.batch = batch;
  arguments.num_vectors = static_cast<int32_t>(num_vectors);
  arguments.dim = static_cast<int32_t>(dim);
  arguments.width = static_cast<int32_t>(interaction_width(num_vectors, dim));
  arguments.allow_tf32 = allow_tf32;
  arguments.first = bottom.data_ptr();
  arguments.first_stride = bottom.stride(0);
}

InteractionArguments plain_arguments(const Tensor& features, const Tensor& bottom, bool allow_tf32,
                                     const char* op) {
  STD_TORCH_CHECK(features.dim() == 3, op, ": features must be [B, N - 1, D]");
  check_same_device(bottom, features, op, "bottom");
  STD_TORCH_CHECK(bottom.scalar_type() == features.scalar_type(), op,
                  ": bottom and features must have the same type");
  const int64_t dim = features.size(2);
  STD_TORCH_CHECK(features.numel() == 0 || features.is_contiguous() ||
                      (features.stride(2) == 1 && features.stride(1) == dim),
                  op, ": the vectors of a sample must be contiguous");
  InteractionArguments arguments{};
  set_samples(arguments, bottom, features.size(0), features.size(1) + 1, dim, allow_tf32, op);
  arguments.rest = features.data_ptr();
  arguments.rest_stride = features.stride(0);
  return arguments;
}

Tensor run_forward(const InteractionArguments& given, const Tensor& like) {
  InteractionArguments arguments = given;
  Tensor output = new_empty(like, {arguments.batch, arguments.width});
  arguments.output = output.data_ptr();
  if (arguments.batch > 0) {
    RECSYS_RUN(dot_interaction, like, arguments);
  }
  return output;
}

// Returns the gradients of vectors 1..N-1, [B, N - 1, D], and of vector 0, [B, D].
std::tuple<Tensor, Tensor> run_backward(const InteractionArguments& given, const Tensor& gradient,
                                        const Tensor& bottom, const char* op) {
  InteractionArguments arguments = given;
  STD_TORCH_CHECK(gradient.dim() == 2 && gradient.size(0) == arguments.batch &&
                      gradient.size(1) == arguments.width,
                  op, ": gradient must be [", arguments.batch, ", ", arguments.width, "]");
  STD_TORCH_CHECK(gradient.scalar_type() == bottom.scalar_type(), op,
                  ": gradient must have the type of bottom");
  const Tensor contiguous = torch::stable::contiguous(gradient);
  const int64_t num_others = arguments.num_vectors - 1;
  Tensor to_others = new_empty(bottom, {arguments.batch, num_others, arguments.dim});
  Tensor to_bottom = new_empty(bottom, {arguments.batch, arguments.dim});
  arguments.gradient = contiguous.data_ptr();
  arguments.first_gradient = to_bottom.data_ptr();
  arguments.first_gradient_stride = arguments.dim;
  arguments.rest_gradient = to_others.data_ptr();
  arguments.rest_gradient_stride = num_others * arguments.dim;
  if (arguments.batch > 0) {
    RECSYS_RUN(dot_interaction_backward, bottom, arguments);
  }
  return {to_others, to_bottom};
}

}  // namespace

InteractionArguments gather_arguments(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                                      bool allow_tf32, const char* op) {
  InteractionArguments arguments{};
  set_table_rows(arguments, table, rows, op);
  STD_TORCH_CHECK(rows.dim() == 2, op, ": rows must be [B, F]");
  check_same_device(bottom, table, op, "bottom");
  set_samples(arguments, bottom, rows.size(0), rows.size(1) + 1, table.size(1), allow_tf32, op);
  check_rows(rows, table.size(0), op);
  return arguments;
}

Tensor dot_interaction(const Tensor& features, const Tensor& bottom, bool allow_tf32) {
  return run_forward(plain_arguments(features, bottom, allow_tf32, "dot_interaction"), bottom);
}

std::tuple<Tensor, Tensor> dot_interaction_backward(const Tensor& gradient, const Tensor& features,
                                                    const Tensor& bottom, bool allow_tf32) {
  const char* op = "dot_interaction_backward";
  return run_backward(plain_arguments(features, bottom, allow_tf32, op), gradient, bottom, op);
}

// `anchor` and `overflow` serve only autograd.
Tensor gather_dot_interaction(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                              const std::optional<Tensor>& /*anchor*/,
                              const std::optional<Tensor>& /*overflow*/, bool allow_tf32) {
  return run_forward(gather_arguments(table, rows, bottom, allow_tf32, "gather_dot_interaction"),
                     bottom);
}

std::tuple<Tensor, Tensor> gather_dot_interaction_backward(const Tensor& gradient,
                                                           const Tensor& table, const Tensor& rows,
                                                           const Tensor& bottom,
                                                           const std::optional<Tensor>& overflow,
                                                           bool allow_tf32) {
  const char* op = "gather_dot_interaction_backward";
  InteractionArguments arguments = gather_arguments(table, rows, bottom, allow_tf32, op);
  STD_TORCH_CHECK(!overflow.has_value() || runs_on_device(table), op,
                  ": only a CUDA device finds overflow");
  arguments.overflow = optional_data<bool>(overflow, table, ScalarType::Bool, 1, op, "overflow");
  return run_backward(arguments, gradient, bottom, op);
}

}  // namespace recsys

static const recsys::Op kOps[] = {
    {"dot_interaction(Tensor features, Tensor bottom, bool allow_tf32) -> Tensor",
     TORCH_BOX(&recsys::dot_interaction)},
    {"dot_interaction_backward(Tensor gradient, Tensor features, Tensor bottom,"
     " bool allow_tf32) -> (Tensor, Tensor)",
     TORCH_BOX(&recsys::dot_interaction_backward)},
    {"gather_dot_interaction(Tensor table, Tensor rows, Tensor bottom, Tensor? anchor,"
     " Tensor? overflow, bool allow_tf32) -> Tensor",
     TORCH_BOX(&recsys::gather_dot_interaction)},
    {"gather_dot_interaction_backward(Tensor gradient, Tensor table, Tensor rows,"
     " Tensor bottom, Tensor(a!)? overflow, bool allow_tf32) -> (Tensor, Tensor)",
     TORCH_BOX(&recsys::gather_dot_interaction_backward)},
};

RECSYS_REGISTER(kOps)
