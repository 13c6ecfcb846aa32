// SPDX-License-Identifier: Apache-2.0
// torch ops of the row update and its sort: shapes are checked and outputs made here, on every
// backend.
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../registration.h"
#include "../row_checks.h"
#include "../run_kernel.h"
#include "rules.h"
#include "update_arguments.h"

namespace recsys {
namespace {

using torch::stable::new_empty;

// What the op needs to know about a rule.
struct RuleShape {
  const char* name;
  int row_states;
  int element_states;
  int hyperparameters;
};

struct NoMath {
  using Number = float;
};

template <template <typename> class... Each>
std::vector<RuleShape> shapes_of(RuleList<Each...>) {
  return {{Each<NoMath>::kName, Each<NoMath>::kRowStates, Each<NoMath>::kElementStates,
           Each<NoMath>::kHyperparameters}...};
}

// Checks the rule's name, state and hyperparameters, and writes them into the arguments.
void set_rule(UpdateArguments& arguments, const std::string& name, const std::vector<Tensor>& state,
              const std::vector<double>& hyperparameters, const Tensor& table, const char* op) {
  static const std::vector<RuleShape> shapes = shapes_of(UpdateRules{});
  std::string names;
  const RuleShape* rule = nullptr;
  for (const RuleShape& shape : shapes) {
    names += (names.empty() ? "" : ", ") + std::string(shape.name);
    if (name == shape.name) {
      rule = &shape;
      arguments.rule = static_cast<int32_t>(&shape - shapes.data());
    }
  }
  STD_TORCH_CHECK(rule != nullptr, op, ": there is no rule '", name, "', only ", names,
                  "; if row_rules.py has it, build the kernels again: make build");
  const int states = rule->row_states + rule->element_states;
  STD_TORCH_CHECK(static_cast<int>(state.size()) == states, op, ": the state does not fit the ",
                  "rule '", name, "', which has ", states, " tensors, not ", state.size());
  for (int i = 0; i < states; ++i) {
    arguments.state[i] =
        optional_data<float>(state[i], table, ScalarType::Float,
                             i < rule->row_states ? table.size(0) : table.numel(), op, "state");
  }
  STD_TORCH_CHECK(static_cast<int>(hyperparameters.size()) == rule->hyperparameters, op,
                  ": the rule '", name, "' has ", rule->hyperparameters, " hyperparameters, not ",
                  hyperparameters.size());
  for (int i = 0; i < rule->hyperparameters; ++i) {
    arguments.hyperparameters[i] = static_cast<float>(hyperparameters[i]);
    arguments.one_minus_hyperparameters[i] = static_cast<float>(1.0 - hyperparameters[i]);
  }
}

// The arguments that update_rows and sgd_rows_unsorted share.
UpdateArguments update_arguments(const Tensor& table, const Tensor& rows, const Tensor& gradients,
                                 const std::optional<Tensor>& source,
                                 const std::optional<Tensor>& scale, const Tensor& lr,
                                 const std::optional<Tensor>& inverse_scale,
                                 const std::optional<Tensor>& overflow, const char* op) {
  UpdateArguments arguments{};
  set_table_rows(arguments, table, rows, op);
  check_same_device(gradients, table, op, "gradients");
  check_contiguous(gradients, op, "gradients");
  STD_TORCH_CHECK(arguments.count <= std::numeric_limits<int32_t>::max(), op,
                  ": more than 2^31 - 1 lookups");
  STD_TORCH_CHECK(gradients.dim() == 2 && gradients.size(1) == table.size(1), op,
                  ": gradients must be [L, ", table.size(1), "]");
  STD_TORCH_CHECK(source.has_value() || gradients.size(0) == arguments.count, op, ": ",
                  arguments.count, " lookups, but ", gradients.size(0), " gradients");
  arguments.gradients = gradients.data_ptr();
  arguments.gradient_dtype = dtype_of(gradients, op, "gradients");
  arguments.source =
      optional_data<int32_t>(source, table, ScalarType::Int, arguments.count, op, "source");
  arguments.scale =
      optional_data<float>(scale, table, ScalarType::Float, arguments.count, op, "scale");
  arguments.lr = optional_data<float>(lr, table, ScalarType::Float, 1, op, "lr");
  arguments.inverse_scale =
      optional_data<float>(inverse_scale, table, ScalarType::Float, 1, op, "inverse_scale");
  arguments.overflow = optional_data<bool>(overflow, table, ScalarType::Bool, 1, op, "overflow");
  return arguments;
}

}  // namespace

// Returns the rows in ascending order and the position that each came from.
std::tuple<Tensor, Tensor> sort_rows(const Tensor& rows, int64_t num_table_rows) {
  const char* op = "sort_rows";
  check_contiguous(rows, op, "rows");
  check_rows(rows, num_table_rows, op);
  SortArguments arguments{};
  arguments.rows = rows.data_ptr();
  arguments.row_type = row_type_of(rows, op);
  arguments.count = rows.numel();
  STD_TORCH_CHECK(arguments.count <= std::numeric_limits<int32_t>::max(), op,
                  ": more than 2^31 - 1 lookups");
  arguments.num_table_rows = num_table_rows;
  Tensor sorted_rows = new_empty(rows, {arguments.count});
  Tensor positions = new_empty(rows, {arguments.count}, ScalarType::Int);
  if (arguments.count == 0) {
    return {sorted_rows, positions};
  }
  arguments.sorted_rows = sorted_rows.data_ptr();
  arguments.positions = static_cast<int32_t*>(positions.data_ptr());
  const auto bytes =
      static_cast<int64_t>(RECSYS_WORKSPACE_BYTES(sort_workspace_bytes, rows, arguments));
  Tensor workspace = new_empty(rows, {bytes}, ScalarType::Byte);
  arguments.workspace = workspace.data_ptr();
  RECSYS_RUN(sort_rows, rows, arguments);
  return {sorted_rows, positions};
}

void update_rows(const Tensor& table, const std::vector<Tensor>& state, const Tensor& sorted_rows,
                 const Tensor& positions, const Tensor& gradients,
                 const std::optional<Tensor>& source, const std::optional<Tensor>& scale,
                 const Tensor& lr, const Tensor& step, const std::optional<Tensor>& inverse_scale,
                 const std::optional<Tensor>& overflow, const std::string& rule,
                 double weight_decay, const std::vector<double>& hyperparameters,
                 int64_t rounding_seed) {
  const char* op = "update_rows";
  UpdateArguments arguments = update_arguments(table, sorted_rows, gradients, source, scale, lr,
                                               inverse_scale, overflow, op);
  check_sorted_rows(sorted_rows, table.size(0), op);
  set_rule(arguments, rule, state, hyperparameters, table, op);
  arguments.positions =
      optional_data<int32_t>(positions, table, ScalarType::Int, arguments.count, op, "positions");
  arguments.step = optional_data<float>(step, table, ScalarType::Float, 1, op, "step");
  arguments.weight_decay = static_cast<float>(weight_decay);
  arguments.rounding_seed = static_cast<uint32_t>(rounding_seed);
  if (arguments.count == 0 || table.numel() == 0) {
    return;
  }
  const auto bytes =
      static_cast<int64_t>(RECSYS_WORKSPACE_BYTES(update_workspace_bytes, table, arguments));
  Tensor workspace = new_empty(table, {bytes}, ScalarType::Byte);
  arguments.workspace = workspace.data_ptr();
  RECSYS_RUN(update_rows, table, arguments);
}

#ifndef RECSYS_EMULATOR
void sgd_rows_unsorted(const Tensor& table, const Tensor& rows, const Tensor& gradients,
                       const std::optional<Tensor>& source, const std::optional<Tensor>& scale,
                       const Tensor& lr, const std::optional<Tensor>& inverse_scale,
                       const std::optional<Tensor>& overflow) {
  const char* op = "sgd_rows_unsorted";
  const UpdateArguments arguments =
      update_arguments(table, rows, gradients, source, scale, lr, inverse_scale, overflow, op);
  STD_TORCH_CHECK(arguments.table_dtype == Dtype::kFloat32, op, ": table must be float32");
  check_rows(rows, table.size(0), op);
  if (arguments.count > 0 && table.numel() > 0) {
    cpu::sgd_rows_unsorted(arguments);
  }
}
#endif

}  // namespace recsys

static const recsys::Op kOps[] = {
    {"sort_rows(Tensor rows, int num_table_rows) -> (Tensor, Tensor)",
     TORCH_BOX(&recsys::sort_rows)},
    {"update_rows(Tensor(a!) table, Tensor(b!)[] state, Tensor sorted_rows, Tensor positions,"
     " Tensor gradients, Tensor? source, Tensor? scale, Tensor lr, Tensor step,"
     " Tensor? inverse_scale, Tensor? overflow, str rule, float weight_decay,"
     " float[] hyperparameters, int rounding_seed) -> ()",
     TORCH_BOX(&recsys::update_rows)},
};

RECSYS_REGISTER(kOps)

#ifndef RECSYS_EMULATOR
static const recsys::Op kCpuOps[] = {
    {"sgd_rows_unsorted(Tensor(a!) table, Tensor rows, Tensor gradients, Tensor? source,"
     " Tensor? scale, Tensor lr, Tensor? inverse_scale, Tensor? overflow) -> ()",
     TORCH_BOX(&recsys::sgd_rows_unsorted)},
};

RECSYS_REGISTER_ON_CPU(kCpuOps)
#endif
