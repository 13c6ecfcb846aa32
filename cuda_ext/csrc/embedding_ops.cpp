// SPDX-License-Identifier: Apache-2.0
// torch ops of the fused embedding: shapes are checked and outputs made here, on every backend.
#include "embedding_ops.h"

#include <algorithm>
#include <vector>

#include "run_kernel.h"
#include "update_rules.h"

namespace recsys {
namespace {

using torch::headeronly::DeviceType;
using torch::stable::new_empty;

Tensor on_cpu(const Tensor& tensor) {
  return torch::stable::to(tensor, torch::stable::Device(DeviceType::CPU));
}

// Returns an int64 [1] where the tensor lies, saying that no id was bad so far.
Tensor none_bad_beside(const Tensor& tensor) {
  Tensor none = new_empty(tensor, {1}, ScalarType::Long, std::nullopt,
                          torch::stable::Device(DeviceType::CPU));
  *static_cast<int64_t*>(none.data_ptr()) = std::numeric_limits<int64_t>::max();
  return tensor.is_cuda() ? torch::stable::to(none, tensor.device()) : none;
}

// Throws if an id lay outside its table, naming feature, position and value.
void check_ids(const JointRowsArguments& arguments, const Tensor& ids, const Tensor& offsets,
               const std::optional<Tensor>& bag_offsets, int64_t bad) {
  if (bad == std::numeric_limits<int64_t>::max()) {
    return;
  }
  const Tensor host_ids = on_cpu(ids);
  const Tensor host_offsets = on_cpu(offsets);
  const auto* starts = static_cast<const int64_t*>(host_offsets.data_ptr());
  int64_t bag = bad;
  if (bag_offsets.has_value()) {
    const Tensor host_bags = on_cpu(*bag_offsets);
    const auto* bags = static_cast<const int64_t*>(host_bags.data_ptr());
    bag = std::upper_bound(bags, bags + arguments.num_bags + 1, bad) - bags - 1;
  }
  const int64_t feature = bag % arguments.num_features;
  const int64_t size = starts[feature + 1] - starts[feature];
  STD_TORCH_CHECK(false, "joint_rows: feature ", feature, ", sample ", bag / arguments.num_features,
                  ": id ", integer_at(host_ids.data_ptr(), arguments.id_type, bad),
                  " is outside [0, ", size,
                  "), the rows of its table; hash_indices takes ids modulo the table size");
}

GatherArguments lookup_arguments(const Tensor& table, const Tensor& rows, ScalarType dtype,
                                 const char* op) {
  STD_TORCH_CHECK(table.dim() == 2, op, ": table must be [R, D]");
  check_contiguous(table, op, "table");
  check_contiguous(rows, op, "rows");
  check_same_device(rows, table, op, "rows");
  GatherArguments arguments{};
  arguments.table = table.data_ptr();
  arguments.table_dtype = dtype_of(table, op, "table");
  arguments.output_dtype = dtype_of(dtype, op, "the result");
  STD_TORCH_CHECK(arguments.table_dtype != Dtype::kFloat16, op,
                  ": a table is float32, bfloat16 or float64");
  STD_TORCH_CHECK(
      (arguments.table_dtype == Dtype::kFloat64) == (arguments.output_dtype == Dtype::kFloat64), op,
      ": a float64 table goes with a float64 result");
  arguments.num_table_rows = table.size(0);
  arguments.dim = static_cast<int32_t>(table.size(1));
  arguments.rows = rows.data_ptr();
  arguments.row_type = row_type_of(rows, op);
  arguments.count = rows.numel();
  check_rows(rows, table.size(0), op);
  return arguments;
}

// What the op has to know of a rule.
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
  STD_TORCH_CHECK(rule != nullptr, op, ": there is no rule '", name, "', only ", names);
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

// The arguments of update_rows and sgd_rows_unsorted alike.
UpdateArguments update_arguments(const Tensor& table, const Tensor& rows, const Tensor& gradients,
                                 const std::optional<Tensor>& source,
                                 const std::optional<Tensor>& scale, const Tensor& lr,
                                 const std::optional<Tensor>& inverse_scale,
                                 const std::optional<Tensor>& overflow, const char* op) {
  STD_TORCH_CHECK(table.dim() == 2, op, ": table must be [R, D]");
  check_contiguous(table, op, "table");
  check_contiguous(rows, op, "rows");
  check_same_device(rows, table, op, "rows");
  check_same_device(gradients, table, op, "gradients");
  check_contiguous(gradients, op, "gradients");
  UpdateArguments arguments{};
  arguments.table = table.data_ptr();
  arguments.table_dtype = dtype_of(table, op, "table");
  STD_TORCH_CHECK(
      arguments.table_dtype == Dtype::kFloat32 || arguments.table_dtype == Dtype::kBFloat16, op,
      ": table must be float32 or bfloat16");
  arguments.num_table_rows = table.size(0);
  arguments.dim = static_cast<int32_t>(table.size(1));
  arguments.rows = rows.data_ptr();
  arguments.row_type = row_type_of(rows, op);
  arguments.count = rows.numel();
  STD_TORCH_CHECK(arguments.count <= std::numeric_limits<int32_t>::max(), op,
                  ": more than 2^31 - 1 lookups");
  STD_TORCH_CHECK(gradients.dim() == 2 && gradients.size(1) == table.size(1), op,
                  ": gradients must be [L, ", table.size(1), "]");
  STD_TORCH_CHECK(source.has_value() || gradients.size(0) == arguments.count, op, ": ",
                  arguments.count, " lookups, yet ", gradients.size(0), " gradients");
  arguments.gradients = gradients.data_ptr();
  arguments.gradient_dtype = dtype_of(gradients, op, "gradients");
  STD_TORCH_CHECK(arguments.gradient_dtype != Dtype::kFloat64, op,
                  ": gradients must be float32, float16 or bfloat16");
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

JointRowsArguments run_joint_rows(const Tensor& ids, const Tensor& offsets,
                                  const std::optional<Tensor>& bag_offsets, const Tensor& bad,
                                  bool hash_indices, ScalarType dtype, Tensor& rows) {
  const char* op = "joint_rows";
  check_contiguous(ids, op, "ids");
  check_contiguous(offsets, op, "offsets");
  check_same_device(offsets, ids, op, "offsets");
  STD_TORCH_CHECK(offsets.scalar_type() == ScalarType::Long && offsets.numel() >= 2, op,
                  ": offsets must be int64, one more than there are features");
  JointRowsArguments arguments{};
  arguments.ids = ids.data_ptr();
  arguments.id_type = index_type_of(ids.scalar_type(), op, "ids");
  arguments.count = ids.numel();
  arguments.num_features = offsets.numel() - 1;
  arguments.offsets = static_cast<const int64_t*>(offsets.data_ptr());
  arguments.num_bags = arguments.count;
  if (bag_offsets.has_value()) {
    arguments.num_bags = bag_offsets->numel() - 1;
    arguments.bag_offsets = bag_offsets_data(*bag_offsets, ids, arguments.count, op);
  }
  STD_TORCH_CHECK(arguments.num_bags % arguments.num_features == 0, op, ": ", arguments.num_bags,
                  " bags cannot be samples of ", arguments.num_features, " features");
  arguments.hash_indices = hash_indices;
  arguments.bad = optional_data<int64_t>(bad, ids, ScalarType::Long, 1, op, "bad");
  rows = new_empty(ids, ids.sizes(), dtype);
  arguments.row_type = row_type_of(rows, op);
  arguments.rows = rows.data_ptr();
  if (arguments.count > 0) {
    RECSYS_RUN(joint_rows, ids, arguments);
  }
  return arguments;
}

}  // namespace

Tensor joint_rows(const Tensor& ids, const Tensor& offsets,
                  const std::optional<Tensor>& bag_offsets, bool hash_indices, ScalarType dtype) {
  const Tensor bad = none_bad_beside(ids);
  Tensor rows;
  const JointRowsArguments arguments =
      run_joint_rows(ids, offsets, bag_offsets, bad, hash_indices, dtype, rows);
  const Tensor host = on_cpu(bad);
  check_ids(arguments, ids, offsets, bag_offsets, *static_cast<const int64_t*>(host.data_ptr()));
  return rows;
}

Tensor joint_rows_reporting(const Tensor& ids, const Tensor& offsets,
                            const std::optional<Tensor>& bag_offsets, const Tensor& bad,
                            bool hash_indices, ScalarType dtype) {
  Tensor rows;
  run_joint_rows(ids, offsets, bag_offsets, bad, hash_indices, dtype, rows);
  return rows;
}

Tensor embedding_gather(const Tensor& table, const Tensor& rows,
                        const std::optional<Tensor>& /*anchor*/, ScalarType dtype) {
  GatherArguments arguments = lookup_arguments(table, rows, dtype, "embedding_gather");
  std::vector<int64_t> sizes(rows.sizes().begin(), rows.sizes().end());
  sizes.push_back(arguments.dim);
  Tensor output = new_empty(table, sizes, dtype);
  arguments.output = output.data_ptr();
  if (output.numel() > 0) {
    RECSYS_RUN(embedding_gather, table, arguments);
  }
  return output;
}

Tensor embedding_bag(const Tensor& table, const Tensor& rows, const Tensor& bag_offsets,
                     const std::optional<Tensor>& scale, const std::optional<Tensor>& /*anchor*/,
                     ScalarType dtype) {
  const char* op = "embedding_bag";
  BagArguments arguments{};
  arguments.lookup = lookup_arguments(table, rows, dtype, op);
  arguments.num_bags = bag_offsets.numel() - 1;
  arguments.bag_offsets = bag_offsets_data(bag_offsets, rows, arguments.lookup.count, op);
  arguments.scale =
      optional_data<float>(scale, table, ScalarType::Float, arguments.lookup.count, op, "scale");
  Tensor output = new_empty(table, {arguments.num_bags, table.size(1)}, dtype);
  arguments.lookup.output = output.data_ptr();
  if (output.numel() > 0) {
    RECSYS_RUN(embedding_bag, table, arguments);
  }
  return output;
}

Tensor embedding_bag_scale_backward(const Tensor& gradient, const Tensor& table, const Tensor& rows,
                                    const Tensor& source) {
  const char* op = "embedding_bag_scale_backward";
  BagScaleGradientArguments arguments{};
  arguments.lookup = lookup_arguments(table, rows, table.scalar_type(), op);
  STD_TORCH_CHECK(gradient.dim() == 2 && gradient.size(1) == table.size(1), op,
                  ": gradient must be [G, ", table.size(1), "]");
  check_same_device(gradient, table, op, "gradient");
  check_contiguous(gradient, op, "gradient");
  arguments.gradient = gradient.data_ptr();
  arguments.gradient_dtype = dtype_of(gradient, op, "gradient");
  arguments.source =
      optional_data<int32_t>(source, table, ScalarType::Int, arguments.lookup.count, op, "source");
  Tensor output = new_empty(table, {arguments.lookup.count}, ScalarType::Float);
  arguments.lookup.output = output.data_ptr();
  if (arguments.lookup.count > 0) {
    RECSYS_RUN(embedding_bag_scale_backward, table, arguments);
  }
  return output;
}

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

void update_rows(const Tensor& table, const std::optional<Tensor>& table_low,
                 const std::vector<Tensor>& state, const Tensor& sorted_rows,
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
  const int64_t elements = table.numel();
  arguments.table_low =
      optional_data<int16_t>(table_low, table, ScalarType::Short, elements, op, "table_low");
  STD_TORCH_CHECK(arguments.table_low == nullptr || arguments.table_dtype == Dtype::kBFloat16, op,
                  ": table_low goes with a bfloat16 table of high halves");
  arguments.positions =
      optional_data<int32_t>(positions, table, ScalarType::Int, arguments.count, op, "positions");
  arguments.step = optional_data<float>(step, table, ScalarType::Float, 1, op, "step");
  arguments.weight_decay = static_cast<float>(weight_decay);
  arguments.rounding_seed = static_cast<uint32_t>(rounding_seed);
  if (arguments.count == 0 || elements == 0) {
    return;
  }
  const auto bytes =
      static_cast<int64_t>(RECSYS_WORKSPACE_BYTES(update_workspace_bytes, table, arguments));
  Tensor workspace = new_empty(table, {bytes}, ScalarType::Byte);
  arguments.workspace = workspace.data_ptr();
  RECSYS_RUN(update_rows, table, arguments);
}

void sgd_rows_unsorted(const Tensor& table, const Tensor& rows, const Tensor& gradients,
                       const std::optional<Tensor>& source, const std::optional<Tensor>& scale,
                       const Tensor& lr, const std::optional<Tensor>& inverse_scale,
                       const std::optional<Tensor>& overflow) {
  const char* op = "sgd_rows_unsorted";
  UnsortedSgdArguments arguments{
      update_arguments(table, rows, gradients, source, scale, lr, inverse_scale, overflow, op)};
  STD_TORCH_CHECK(arguments.update.table_dtype == Dtype::kFloat32, op, ": table must be float32");
  check_rows(rows, table.size(0), op);
  if (arguments.update.count > 0 && table.numel() > 0) {
    RECSYS_RUN(sgd_rows_unsorted, table, arguments);
  }
}

}  // namespace recsys
