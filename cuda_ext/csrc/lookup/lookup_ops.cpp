// SPDX-License-Identifier: Apache-2.0
// torch ops of the embedding lookup: shapes are checked and outputs made here, on every backend.
#include <algorithm>
#include <limits>

#include "../ops.h"
#include "../registration.h"
#include "../row_checks.h"
#include "../run_kernel.h"
#include "lookup_arguments.h"

namespace recsys {
namespace {

using torch::headeronly::DeviceType;
using torch::stable::new_empty;

Tensor on_cpu(const Tensor& tensor) {
  return torch::stable::to(tensor, torch::stable::Device(DeviceType::CPU));
}

// Returns an int64 [1] on the tensor's device, set to the value that means no bad id so far.
Tensor none_bad_beside(const Tensor& tensor) {
  Tensor none = new_empty(tensor, {1}, ScalarType::Long, std::nullopt,
                          torch::stable::Device(DeviceType::CPU));
  *static_cast<int64_t*>(none.data_ptr()) = std::numeric_limits<int64_t>::max();
  return tensor.is_cuda() ? torch::stable::to(none, tensor.device()) : none;
}

// Throws if an id was outside its table, naming feature, sample and value.
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
  GatherArguments arguments{};
  set_table_rows(arguments, table, rows, op);
  check_float16(dtype, table, op);
  arguments.output_dtype = dtype_of(dtype, op, "the result");
  check_rows(rows, table.size(0), op);
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

// Throws if an id is bad, which it learns by waiting for the device.
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

// Lowers `bad` (int64 [1]) to the position of the first bad id, without waiting for the device.
Tensor joint_rows_reporting(const Tensor& ids, const Tensor& offsets,
                            const std::optional<Tensor>& bag_offsets, const Tensor& bad,
                            bool hash_indices, ScalarType dtype) {
  Tensor rows;
  run_joint_rows(ids, offsets, bag_offsets, bad, hash_indices, dtype, rows);
  return rows;
}

// Puts columns of ids side by side: row k of the groups, one after the other, is column
// `features[k]` of the result.
Tensor stack_ids(const std::vector<Tensor>& groups, const std::vector<int64_t>& features) {
  const char* op = "stack_ids";
  STD_TORCH_CHECK(!groups.empty(), op, ": there must be a group of ids");
  const auto num_features = static_cast<int64_t>(features.size());
  const int64_t batch = groups[0].dim() == 2 ? groups[0].size(1) : -1;
  std::vector<const void*> columns(features.size());
  std::vector<IndexType> types(features.size());
  std::vector<bool> is_taken(features.size());
  int64_t row = 0;
  bool wide = false;
  for (const Tensor& group : groups) {
    STD_TORCH_CHECK(group.dim() == 2 && group.size(1) == batch, op,
                    ": groups must be [features, B], with the same B");
    check_contiguous(group, op, "a group");
    check_same_device(group, groups[0], op, "a group");
    const IndexType type = index_type_of(group.scalar_type(), op, "ids");
    wide |= type == IndexType::kInt64;
    const auto* data = static_cast<const char*>(group.data_ptr());
    for (int64_t i = 0; i < group.size(0); ++i, ++row) {
      const int64_t feature = row < num_features ? features[row] : -1;
      STD_TORCH_CHECK(feature >= 0 && feature < num_features && !is_taken[feature], op,
                      ": features must be the numbers from 0 on, each once, one for each row of ",
                      "the groups");
      columns[feature] = data + i * batch * (int64_t{1} << static_cast<int>(type));
      types[feature] = type;
      is_taken[feature] = true;
    }
  }
  STD_TORCH_CHECK(row == num_features, op, ": ", num_features, " features, but ", row,
                  " rows of ids");
  Tensor ids =
      new_empty(groups[0], {batch, num_features}, wide ? ScalarType::Long : ScalarType::Int);
  for (int64_t begin = 0; begin < num_features && batch > 0; begin += kMaxStackedColumns) {
    StackIdsArguments arguments{};
    const int64_t end = std::min<int64_t>(begin + kMaxStackedColumns, num_features);
    std::copy(columns.begin() + begin, columns.begin() + end, arguments.columns);
    std::copy(types.begin() + begin, types.begin() + end, arguments.column_types);
    arguments.num_columns = static_cast<int32_t>(end - begin);
    arguments.batch = batch;
    arguments.ids = static_cast<char*>(ids.data_ptr()) + begin * (wide ? 8 : 4);
    arguments.stride = num_features;
    arguments.wide = wide;
    RECSYS_RUN(stack_ids, ids, arguments);
  }
  return ids;
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

}  // namespace recsys

static const recsys::Op kOps[] = {
    {"joint_rows(Tensor ids, Tensor offsets, Tensor? bag_offsets, bool hash_indices,"
     " ScalarType dtype) -> Tensor",
     TORCH_BOX(&recsys::joint_rows)},
    {"joint_rows_reporting(Tensor ids, Tensor offsets, Tensor? bag_offsets, Tensor(a!) bad,"
     " bool hash_indices, ScalarType dtype) -> Tensor",
     TORCH_BOX(&recsys::joint_rows_reporting)},
    {"stack_ids(Tensor[] groups, int[] features) -> Tensor", TORCH_BOX(&recsys::stack_ids)},
    {"embedding_gather(Tensor table, Tensor rows, Tensor? anchor, ScalarType dtype) -> Tensor",
     TORCH_BOX(&recsys::embedding_gather)},
    {"embedding_bag(Tensor table, Tensor rows, Tensor bag_offsets, Tensor? scale,"
     " Tensor? anchor, ScalarType dtype) -> Tensor",
     TORCH_BOX(&recsys::embedding_bag)},
};

RECSYS_REGISTER(kOps)
