// SPDX-License-Identifier: Apache-2.0
// Runs the embedding kernels in the emulator, without torch, and compares them with sums in double:
// built with AddressSanitizer, and with planted faults, which it must notice. Each buffer is a heap
// block of its exact size.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "lookup/kernels.h"
#include "update/kernels.h"

extern "C" void emulator_set_seed(unsigned long long seed);

namespace {

using namespace recsys;

int failures = 0;

void expect(bool holds, const char* what, int dim, int64_t count) {
  if (!holds) {
    ++failures;
    std::printf("FAILED %s, dim %d, %lld lookups\n", what, dim, static_cast<long long>(count));
  }
}

template <typename T>
std::unique_ptr<T[]> block(int64_t size) {
  return std::unique_ptr<T[]>(new T[size]());
}

std::unique_ptr<float[]> random_floats(int64_t size, std::mt19937& random) {
  auto values = block<float>(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = std::uniform_real_distribution<float>(-1, 1)(random);
  }
  return values;
}

bool is_close(double value, double truth) {
  return std::abs(value - truth) <= 1e-5 * std::max(1.0, std::abs(truth));
}

// Half of the rows are drawn from the whole table, the others are row 1: it crosses many chunks.
// One row is outside.
std::unique_ptr<int32_t[]> skewed_rows(int64_t count, int num_rows, std::mt19937& random) {
  auto rows = block<int32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    rows[i] = random() % 2 == 0 ? 1 : static_cast<int32_t>(random() % num_rows);
  }
  if (count > 2) {
    rows[2] = num_rows;
  }
  return rows;
}

void check_lookup(int dim, int64_t count, std::mt19937& random) {
  const int num_rows = 23;
  const auto table = random_floats(num_rows * dim, random);
  const auto rows = skewed_rows(count, num_rows, random);
  const auto output = block<float>(count * dim);
  GatherArguments gather{table.get(), Dtype::kFloat32, num_rows,
                         dim,         rows.get(),      IndexType::kInt32,
                         count,       output.get(),    Dtype::kFloat32};
  expect(device::embedding_gather(gather, nullptr) == 0, "gather launch", dim, count);
  const auto weight = [&](int64_t lookup, int column) {
    return rows[lookup] < num_rows ? table[rows[lookup] * dim + column] : 0.0f;
  };
  bool equal = true;
  for (int64_t i = 0; i < count * dim; ++i) {
    equal = equal && output[i] == weight(i / dim, static_cast<int>(i % dim));
  }
  expect(equal, "gather", dim, count);

  const int64_t num_bags = 3;  // an empty one in the middle
  auto offsets = block<int64_t>(num_bags + 1);
  offsets[1] = offsets[2] = count / 3;
  offsets[3] = count;
  const auto scale = random_floats(count, random);
  const auto sums = block<float>(num_bags * dim);
  gather.output = sums.get();
  const BagArguments bags{gather, offsets.get(), num_bags, scale.get()};
  expect(device::embedding_bag(bags, nullptr) == 0, "bag launch", dim, count);
  equal = true;
  for (int64_t i = 0; i < num_bags * dim; ++i) {
    double truth = 0;
    for (int64_t l = offsets[i / dim]; l < offsets[i / dim + 1]; ++l) {
      truth += static_cast<double>(scale[l]) * weight(l, static_cast<int>(i % dim));
    }
    equal = equal && is_close(sums[i], truth);
  }
  expect(equal, "bag", dim, count);
}

void check_bag_scale(int dim, int64_t count, std::mt19937& random) {
  const int num_rows = 23;
  const int num_bags = 5;
  const auto table = random_floats(num_rows * dim, random);
  const auto gradient = random_floats(num_bags * dim, random);
  const auto rows = skewed_rows(count, num_rows, random);
  const auto source = block<int32_t>(count);
  for (int64_t l = 0; l < count; ++l) {
    source[l] = static_cast<int32_t>(random() % num_bags);
  }
  const auto output = block<float>(count);
  const GatherArguments lookup{table.get(), Dtype::kFloat32, num_rows,
                               dim,         rows.get(),      IndexType::kInt32,
                               count,       output.get(),    Dtype::kFloat32};
  const BagScaleGradientArguments arguments{lookup, gradient.get(), Dtype::kFloat32, source.get()};
  expect(device::embedding_bag_scale_backward(arguments, nullptr) == 0, "scale launch", dim, count);
  bool equal = true;
  for (int64_t l = 0; l < count; ++l) {
    double truth = 0;
    for (int i = 0; rows[l] < num_rows && i < dim; ++i) {
      truth += static_cast<double>(table[rows[l] * dim + i]) * gradient[source[l] * dim + i];
    }
    equal = equal && is_close(output[l], truth);
  }
  expect(equal, "bag scale gradient", dim, count);
}

void check_joint_rows() {
  const int64_t num_features = 3;
  const auto offsets = block<int64_t>(num_features + 1);
  offsets[1] = 5;
  offsets[2] = 6;
  offsets[3] = 100;
  const int64_t count = 300;
  const auto ids = block<int8_t>(count);
  const auto rows = block<int32_t>(count);
  auto bad = block<int64_t>(1);
  JointRowsArguments arguments{ids.get(),     IndexType::kInt8,  count,    num_features,
                               offsets.get(), nullptr,           count,    false,
                               rows.get(),    IndexType::kInt32, bad.get()};
  const auto run = [&](bool hash) {
    arguments.hash_indices = hash;
    bad[0] = INT64_MAX;
    expect(device::joint_rows(arguments, nullptr) == 0, "joint_rows launch", 0, count);
  };
  for (int64_t i = 0; i < count; ++i) {
    ids[i] = static_cast<int8_t>(i % 256 - 128);
  }
  run(true);
  bool equal = bad[0] == INT64_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = offsets[i % 3 + 1] - offsets[i % 3];
    equal = equal && rows[i] == offsets[i % 3] + ((ids[i] % size) + size) % size;
  }
  expect(equal, "joint_rows, hashed", 0, count);
  run(false);
  expect(bad[0] == 0 && rows[0] == -1, "joint_rows, first bad position", 0, count);
}

// Positions in UpdateRules.
constexpr int32_t kSgd = 0;
constexpr int32_t kRowwiseAdagrad = 1;

// A table and its update, run by the kernels and in double.
struct UpdateCase {
  int32_t rule;
  int dim;
  int64_t count;
  bool overflow;
  int num_rows;
};

bool sort_is_right(const SortArguments& sort, const int32_t* rows) {
  const auto* sorted = static_cast<const int32_t*>(sort.sorted_rows);
  bool right = true;
  for (int64_t i = 0; i < sort.count; ++i) {
    const bool outside = rows[sort.positions[i]] >= sort.num_table_rows;
    right = right && sorted[i] == (outside ? -1 : rows[sort.positions[i]]);
    const bool ascends = i == 0 ||
                         static_cast<uint32_t>(sorted[i - 1]) < static_cast<uint32_t>(sorted[i]) ||
                         (sorted[i - 1] == sorted[i] && sort.positions[i - 1] < sort.positions[i]);
    right = right && ascends;
  }
  return right;
}

// Applies the rule in double; `table` and `state` hold the old values.
void update_in_double(const UpdateCase& test, const int32_t* rows, const float* gradients,
                      double lr, double weight_decay, double eps, std::vector<double>& table,
                      std::vector<double>& state) {
  std::vector<double> sums(table.size());
  std::vector<bool> occurs(test.num_rows);
  for (int64_t l = 0; l < test.count; ++l) {
    for (int i = 0; rows[l] < test.num_rows && i < test.dim; ++i) {
      occurs[rows[l]] = true;
      sums[rows[l] * test.dim + i] += gradients[l * test.dim + i];
    }
  }
  for (int row = 0; row < test.num_rows; ++row) {
    if (!occurs[row]) {
      continue;
    }
    double squares = 0;
    for (int i = 0; i < test.dim; ++i) {
      double& sum = sums[row * test.dim + i];
      sum += weight_decay * table[row * test.dim + i];
      squares += sum * sum;
    }
    double rate = lr;
    if (test.rule == kRowwiseAdagrad) {
      state[row] += squares / test.dim;
      rate /= std::sqrt(state[row]) + eps;
    }
    for (int i = 0; i < test.dim; ++i) {
      table[row * test.dim + i] -= rate * sums[row * test.dim + i];
    }
  }
}

void check_update(const UpdateCase& test, std::mt19937& random) {
  const int64_t elements = static_cast<int64_t>(test.num_rows) * test.dim;
  const auto table = random_floats(elements, random);
  const auto state = block<float>(test.num_rows);
  std::fill(state.get(), state.get() + test.num_rows, 0.25f);
  const auto rows = skewed_rows(test.count, test.num_rows, random);
  const auto gradients = random_floats(test.count * test.dim, random);
  const auto sorted_rows = block<int32_t>(test.count);
  const auto positions = block<int32_t>(test.count);
  SortArguments sort{rows.get(),        IndexType::kInt32, test.count, test.num_rows,
                     sorted_rows.get(), positions.get(),   nullptr};
  const auto sort_space = block<char>(static_cast<int64_t>(device::sort_workspace_bytes(sort)));
  sort.workspace = sort_space.get();
  expect(device::sort_rows(sort, nullptr) == 0, "sort launch", test.dim, test.count);
  expect(sort_is_right(sort, rows.get()), "sort", test.dim, test.count);

  std::vector<double> truth(table.get(), table.get() + elements);
  std::vector<double> true_state(test.num_rows, 0.25);
  const float lr = 0.125f;
  const float step = 1;
  UpdateArguments update{};
  update.rule = test.rule;
  update.table = table.get();
  update.num_table_rows = test.num_rows;
  update.dim = test.dim;
  update.state[0] = test.rule == kSgd ? nullptr : state.get();
  update.rows = sorted_rows.get();
  update.row_type = IndexType::kInt32;
  update.positions = positions.get();
  update.count = test.count;
  update.gradients = gradients.get();
  update.lr = &lr;
  update.step = &step;
  update.overflow = &test.overflow;
  update.weight_decay = 0.5f;
  update.hyperparameters[0] = 1e-8f;
  const auto space = block<char>(static_cast<int64_t>(device::update_workspace_bytes(update)));
  update.workspace = space.get();
  expect(device::update_rows(update, nullptr) == 0, "update launch", test.dim, test.count);
  if (!test.overflow) {
    update_in_double(test, rows.get(), gradients.get(), lr, update.weight_decay,
                     update.hyperparameters[0], truth, true_state);
  }
  bool equal = true;
  for (int64_t i = 0; i < elements; ++i) {
    equal = equal && is_close(table[i], truth[i]);
  }
  for (int row = 0; row < test.num_rows; ++row) {
    equal = equal && is_close(state[row], true_state[row]);
  }
  expect(equal, test.overflow ? "overflow" : "update", test.dim, test.count);
}

}  // namespace

int main(int argument_count, char** arguments) {
  const int seed = argument_count > 1 ? std::atoi(arguments[1]) : 1;
  emulator_set_seed(seed);
  std::mt19937 random(seed);
  check_joint_rows();
  for (const int dim : {1, 4, 10, 16, 128, 130, 132}) {
    for (const int64_t count : {1, 33, 200}) {
      check_lookup(dim, count, random);
      check_bag_scale(dim, count, random);
    }
  }
  for (const int32_t rule : {kSgd, kRowwiseAdagrad}) {
    for (const int dim : {3, 12, 128, 132}) {
      for (const int64_t count : {1, 31, 33, 64, 900}) {
        check_update({rule, dim, count, false, count == 64 ? 1 : 37}, random);
      }
      check_update({rule, dim, 100, true, 37}, random);
    }
    check_update({rule, 4, 20000, false, 37},
                 random);  // one row for more chunks than a block's teams
  }
  return failures == 0 ? 0 : 1;
}
