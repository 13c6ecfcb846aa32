// SPDX-License-Identifier: Apache-2.0
// torch ops of the dot interaction: shapes are checked and outputs made here, on every backend.
#include "ops.h"

#include <optional>
#include <tuple>

#include "../registration.h"
#include "../row_checks.h"
#include "../run_kernel.h"
#include "kernels.h"

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

void check_sizes(const InteractionArguments& arguments, const char* op) {
  STD_TORCH_CHECK(arguments.num_vectors >= 1 && arguments.num_vectors <= kMaxVectors, op, ": 1 to ",
                  kMaxVectors, " vectors a sample, got ", arguments.num_vectors);
  STD_TORCH_CHECK(arguments.dim >= 1 && arguments.dim <= kMaxDim, op, ": 1 to ", kMaxDim,
                  " columns a vector, got ", arguments.dim);
}

// Fills in vector 0 of each sample, given as a tensor of its own.
void set_bottom(InteractionArguments& arguments, const Tensor& bottom, int64_t batch, int64_t dim,
                const char* op) {
  STD_TORCH_CHECK(bottom.dim() == 2 && bottom.size(0) == batch && bottom.size(1) == dim, op,
                  ": bottom must be [", batch, ", ", dim, "]");
  STD_TORCH_CHECK(bottom.stride(1) == 1 || dim == 1, op, ": rows of bottom must be contiguous");
  arguments.first = bottom.data_ptr();
  arguments.first_stride = bottom.stride(0);
}

InteractionArguments plain_arguments(const Tensor& features, const std::optional<Tensor>& bottom,
                                     bool allow_tf32, const char* op) {
  STD_TORCH_CHECK(features.dim() == 3, op, ": features must be [B, N, D]");
  check_contiguous(features, op, "features");
  InteractionArguments arguments{};
  arguments.dtype = dtype_of(features, op, "features");
  arguments.batch = features.size(0);
  const int64_t stride = features.size(1) * features.size(2);
  arguments.dim = static_cast<int32_t>(features.size(2));
  arguments.allow_tf32 = allow_tf32;
  arguments.rest_stride = stride;
  if (bottom.has_value()) {
    arguments.num_vectors = static_cast<int32_t>(features.size(1) + 1);
    check_same_device(*bottom, features, op, "bottom");
    STD_TORCH_CHECK(bottom->scalar_type() == features.scalar_type(), op,
                    ": bottom and features must have one type");
    set_bottom(arguments, *bottom, features.size(0), features.size(2), op);
    arguments.rest = features.data_ptr();
  } else {
    arguments.num_vectors = static_cast<int32_t>(features.size(1));
    arguments.first = features.data_ptr();
    arguments.first_stride = stride;
    arguments.rest = static_cast<const char*>(features.data_ptr()) +
                     features.size(2) * static_cast<int64_t>(features.element_size());
  }
  check_sizes(arguments, op);
  arguments.width = static_cast<int32_t>(interaction_width(arguments.num_vectors, arguments.dim));
  return arguments;
}

InteractionArguments gather_arguments(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                                      bool allow_tf32, const char* op) {
  STD_TORCH_CHECK(table.dim() == 2, op, ": table must be [R, D]");
  STD_TORCH_CHECK(rows.dim() == 2, op, ": rows must be [B, F]");
  check_contiguous(table, op, "table");
  check_contiguous(rows, op, "rows");
  check_same_device(rows, table, op, "rows");
  check_same_device(bottom, table, op, "bottom");
  InteractionArguments arguments{};
  arguments.dtype = dtype_of(bottom, op, "bottom");
  arguments.table_dtype = dtype_of(table, op, "table");
  STD_TORCH_CHECK(
      (arguments.table_dtype == Dtype::kFloat64) == (arguments.dtype == Dtype::kFloat64), op,
      ": a float64 table goes with a float64 bottom");
  STD_TORCH_CHECK(arguments.table_dtype != Dtype::kFloat16, op,
                  ": a table is float32, bfloat16 or float64");
  arguments.batch = rows.size(0);
  arguments.num_vectors = static_cast<int32_t>(rows.size(1) + 1);
  arguments.dim = static_cast<int32_t>(table.size(1));
  check_sizes(arguments, op);
  arguments.allow_tf32 = allow_tf32;
  arguments.width = static_cast<int32_t>(interaction_width(arguments.num_vectors, arguments.dim));
  set_bottom(arguments, bottom, rows.size(0), table.size(1), op);
  arguments.table = table.data_ptr();
  arguments.num_table_rows = table.size(0);
  arguments.rows = rows.data_ptr();
  arguments.row_type = row_type_of(rows, op);
  check_rows(rows, table.size(0), op);
  return arguments;
}

Tensor checked_gradient(const Tensor& gradient, const InteractionArguments& arguments,
                        ScalarType type, const char* op) {
  STD_TORCH_CHECK(gradient.dim() == 2 && gradient.size(0) == arguments.batch &&
                      gradient.size(1) == arguments.width,
                  op, ": gradient must be [", arguments.batch, ", ", arguments.width, "]");
  STD_TORCH_CHECK(gradient.scalar_type() == type, op, ": gradient has another type than bottom");
  return torch::stable::contiguous(gradient);
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

}  // namespace

Tensor dot_interaction(const Tensor& features, const std::optional<Tensor>& bottom,
                       bool allow_tf32) {
  return run_forward(plain_arguments(features, bottom, allow_tf32, "dot_interaction"), features);
}

// Returns the gradients of features and of bottom (empty where there is no bottom).
std::tuple<Tensor, Tensor> dot_interaction_backward(const Tensor& gradient, const Tensor& features,
                                                    const std::optional<Tensor>& bottom,
                                                    bool allow_tf32) {
  const char* op = "dot_interaction_backward";
  InteractionArguments arguments = plain_arguments(features, bottom, allow_tf32, op);
  const Tensor given = checked_gradient(gradient, arguments, features.scalar_type(), op);
  Tensor features_gradient = new_empty(features, features.sizes());
  Tensor bottom_gradient =
      new_empty(features, {bottom.has_value() ? features.size(0) : 0, features.size(2)});
  arguments.gradient = given.data_ptr();
  arguments.rest_gradient_stride = arguments.rest_stride;
  if (bottom.has_value()) {
    arguments.first_gradient = bottom_gradient.data_ptr();
    arguments.first_gradient_stride = arguments.dim;
    arguments.rest_gradient = features_gradient.data_ptr();
  } else {
    arguments.first_gradient = features_gradient.data_ptr();
    arguments.first_gradient_stride = arguments.rest_stride;
    arguments.rest_gradient = static_cast<char*>(features_gradient.data_ptr()) +
                              arguments.dim * static_cast<int64_t>(features.element_size());
  }
  if (arguments.batch > 0) {
    RECSYS_RUN(dot_interaction_backward, features, arguments);
  }
  return {features_gradient, bottom_gradient};
}

// `anchor` and `overflow` are there for autograd alone.
Tensor gather_dot_interaction(const Tensor& table, const Tensor& rows, const Tensor& bottom,
                              const std::optional<Tensor>& /*anchor*/,
                              const std::optional<Tensor>& /*overflow*/, bool allow_tf32) {
  return run_forward(gather_arguments(table, rows, bottom, allow_tf32, "gather_dot_interaction"),
                     bottom);
}

// Returns the gradients of the looked-up rows [B, F, D] and of bottom.
std::tuple<Tensor, Tensor> gather_dot_interaction_backward(const Tensor& gradient,
                                                           const Tensor& table, const Tensor& rows,
                                                           const Tensor& bottom,
                                                           const std::optional<Tensor>& overflow,
                                                           bool allow_tf32) {
  const char* op = "gather_dot_interaction_backward";
  InteractionArguments arguments = gather_arguments(table, rows, bottom, allow_tf32, op);
  const Tensor given = checked_gradient(gradient, arguments, bottom.scalar_type(), op);
  Tensor vectors_gradient = new_empty(bottom, {rows.size(0), rows.size(1), table.size(1)});
  Tensor bottom_gradient = new_empty(bottom, {rows.size(0), table.size(1)});
  arguments.gradient = given.data_ptr();
  arguments.first_gradient = bottom_gradient.data_ptr();
  arguments.first_gradient_stride = arguments.dim;
  arguments.rest_gradient = vectors_gradient.data_ptr();
  arguments.rest_gradient_stride = rows.size(1) * table.size(1);
  if (overflow.has_value()) {
    check_same_device(*overflow, table, op, "overflow");
    STD_TORCH_CHECK(overflow->scalar_type() == ScalarType::Bool && overflow->numel() == 1, op,
                    ": overflow must be one bool");
    arguments.overflow = static_cast<bool*>(overflow->data_ptr());
  }
  if (arguments.batch > 0) {
    RECSYS_RUN(dot_interaction_backward, bottom, arguments);
  }
  return {vectors_gradient, bottom_gradient};
}

}  // namespace recsys

RECSYS_SCHEMAS(library) {
  library.def(
      "dot_interaction(Tensor features, Tensor? bottom, bool allow_tf32)"
      " -> Tensor");
  library.def(
      "dot_interaction_backward(Tensor gradient, Tensor features, Tensor? bottom,"
      " bool allow_tf32) -> (Tensor, Tensor)");
  library.def(
      "gather_dot_interaction(Tensor table, Tensor rows, Tensor bottom, Tensor? anchor,"
      " Tensor? overflow, bool allow_tf32) -> Tensor");
  library.def(
      "gather_dot_interaction_backward(Tensor gradient, Tensor table, Tensor rows, Tensor bottom,"
      " Tensor(a!)? overflow, bool allow_tf32) -> (Tensor, Tensor)");
}

static void register_kernels(torch::stable::detail::StableLibrary& library) {
  library.impl("dot_interaction", TORCH_BOX(&recsys::dot_interaction));
  library.impl("dot_interaction_backward", TORCH_BOX(&recsys::dot_interaction_backward));
  library.impl("gather_dot_interaction", TORCH_BOX(&recsys::gather_dot_interaction));
  library.impl("gather_dot_interaction_backward",
               TORCH_BOX(&recsys::gather_dot_interaction_backward));
}

RECSYS_REGISTER(register_kernels)
