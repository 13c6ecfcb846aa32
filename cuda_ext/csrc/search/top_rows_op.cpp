// SPDX-License-Identifier: Apache-2.0
// torch op of the rows with the largest products, on the CPU.
#include <cmath>
#include <tuple>

#include "../registration.h"
#include "../tensor_arguments.h"
#include "top_rows_arguments.h"

namespace recsys {
namespace {

constexpr const char* kOp = "top_rows";

void check_queries(const TopRowsArguments& arguments) {
  for (int64_t k = 0; k < arguments.num_queries * arguments.dim; ++k) {
    STD_TORCH_CHECK(std::isfinite(arguments.queries[k]), kOp, ": query ", k / arguments.dim,
                    ", column ", k % arguments.dim, " is not finite");
  }
}

void check_offsets(const TopRowsArguments& arguments, int64_t num_excluded) {
  const int64_t* const offsets = arguments.offsets;
  bool is_ascending = offsets[0] == 0 && offsets[arguments.num_queries] == num_excluded;
  for (int64_t query = 0; query < arguments.num_queries; ++query) {
    is_ascending = is_ascending && offsets[query] <= offsets[query + 1];
  }
  STD_TORCH_CHECK(is_ascending, kOp, ": offsets must ascend from 0 to the ", num_excluded,
                  " excluded rows");
}

std::tuple<Tensor, Tensor, Tensor> top_rows(const Tensor& queries, const Tensor& table,
                                            const Tensor& codes, const Tensor& scales,
                                            const Tensor& biases, double residual, double code_norm,
                                            const Tensor& excluded, const Tensor& offsets,
                                            int64_t count) {
  STD_TORCH_CHECK(queries.dim() == 2 && table.dim() == 2 && queries.size(1) == table.size(1), kOp,
                  ": queries must be [B, D] and the table [R, D]");
  STD_TORCH_CHECK(table.scalar_type() == ScalarType::Float, kOp, ": the table must be float32");
  STD_TORCH_CHECK(table.stride(1) == 1 || table.size(1) == 1, kOp,
                  ": rows of the table must be contiguous");
  STD_TORCH_CHECK(table.size(1) >= 1 && table.size(1) <= kMostSearchColumns, kOp,
                  ": the table must have 1 to ", kMostSearchColumns, " columns, it has ",
                  table.size(1));
  STD_TORCH_CHECK(count >= 1, kOp, ": count must be 1 or more, it is ", count);
  TopRowsArguments arguments{};
  arguments.num_queries = queries.size(0);
  arguments.num_rows = table.size(0);
  arguments.dim = table.size(1);
  arguments.count = count;
  arguments.queries = optional_data<const float>(
      queries, queries, ScalarType::Float, arguments.num_queries * arguments.dim, kOp, "queries");
  arguments.table = static_cast<const float*>(table.data_ptr());
  arguments.table_stride = table.stride(0);
  const int64_t padded = (arguments.num_rows + kSearchBlock - 1) / kSearchBlock * kSearchBlock;
  arguments.codes = optional_data<const uint8_t>(
      codes, queries, ScalarType::Byte, padded * ((arguments.dim + 3) / 4 * 4), kOp, "codes");
  arguments.scales =
      optional_data<const float>(scales, queries, ScalarType::Float, padded, kOp, "scales");
  arguments.biases =
      optional_data<const float>(biases, queries, ScalarType::Float, padded, kOp, "biases");
  arguments.residual = residual;
  arguments.code_norm = code_norm;
  arguments.excluded = optional_data<const int64_t>(excluded, queries, ScalarType::Long,
                                                    excluded.numel(), kOp, "excluded");
  arguments.offsets = optional_data<const int64_t>(offsets, queries, ScalarType::Long,
                                                   arguments.num_queries + 1, kOp, "offsets");
  check_offsets(arguments, excluded.numel());
  check_queries(arguments);
  Tensor rows = torch::stable::new_empty(offsets, {arguments.num_queries, count});
  Tensor scores = torch::stable::new_empty(queries, {arguments.num_queries, count});
  Tensor scored = torch::stable::new_empty(offsets, {arguments.num_queries});
  arguments.rows = static_cast<int64_t*>(rows.data_ptr());
  arguments.scores = static_cast<float*>(scores.data_ptr());
  arguments.scored = static_cast<int64_t*>(scored.data_ptr());
  cpu::run_top_rows(arguments);
  return {rows, scores, scored};
}

}  // namespace
}  // namespace recsys

static const recsys::Op kOps[] = {
    {"top_rows(Tensor queries, Tensor table, Tensor codes, Tensor scales, Tensor biases,"
     " float residual, float code_norm, Tensor excluded, Tensor offsets, int count) -> (Tensor,"
     " Tensor, Tensor)",
     TORCH_BOX(&recsys::top_rows)},
};

RECSYS_REGISTER_ON_CPU(kOps)
