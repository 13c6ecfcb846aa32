// SPDX-License-Identifier: Apache-2.0
#include "served_dlrm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace recsys::serve {
namespace {

// Least samples of a task if threads share a batch; with fewer, products have few columns.
constexpr int64_t kLeastSamples = 16;

// Copies a checked tensor, if there is one.
void copy_values(const InputTensor* tensor, void* to) {
  if (tensor != nullptr) std::memcpy(to, tensor->data, tensor->bytes);
}

}  // namespace

Instance::Instance(std::shared_ptr<const ServedVersion> version, int num_threads)
    : version_(std::move(version)), threads_(num_threads) {
  const Deployment& deployment = version_->deployment;
  if (deployment.takes_raw_rows) {
    raw_rows_ = std::make_unique<RawRows>(version_->folder + "/features.bin", deployment);
  }
  for (int thread = 0; thread < num_threads; ++thread) {
    scratch_.push_back(version_->network.make_scratch());
  }
}

void Instance::add(const Request& request, Features& features) {
  const int64_t rows = features.rows;
  try {
    append(request, features);
  } catch (...) {  // also if memory ran out between two columns: the next request begins here
    features.resize(version_->deployment, rows);
    throw;
  }
}

void Instance::append(const Request& request, Features& features) {
  const Deployment& deployment = version_->deployment;
  const int64_t before = features.rows;
  const int64_t ids_before = before * deployment.num_slots;
  if (raw_rows_ != nullptr && RawRows::has_raw(request)) {
    raw_rows_->read(request, features);
  } else {
    std::vector<ExpectedTensor> expected;
    if (deployment.num_numerical > 0) {
      expected.push_back({"numerical", "float32", deployment.num_numerical});
    }
    if (deployment.num_slots > 0) {
      expected.push_back({"categorical", "int64", deployment.num_slots});
    }
    if (deployment.num_list_slots > 0) {
      expected.push_back({"factors", "float32", deployment.num_list_slots});
    }
    check_tensors(expected, request);
    features.resize(deployment, before + request.front().rows());
    copy_values(find_input(request, "categorical"), features.ids.data() + ids_before);
    copy_values(find_input(request, "numerical"),
                features.numerical.data() + before * deployment.num_numerical);
    copy_values(find_input(request, "factors"),
                features.scale.data() + before * deployment.num_list_slots);
  }
  if (deployment.refuses_bad_ids) {
    check_ids(features.ids.data() + ids_before, features.rows - before, deployment.table_sizes,
              deployment.widths);
  }
}

Answers Instance::answer(const Features& features) {
  const Deployment& deployment = version_->deployment;
  const int64_t rows = features.rows;
  Answers answers;
  answers.logit.resize(static_cast<size_t>(rows));
  answers.probability.resize(static_cast<size_t>(rows));
  const int64_t per_thread = (rows + threads_.num_threads() - 1) / threads_.num_threads();
  const int64_t block = std::clamp<int64_t>(per_thread, kLeastSamples, kBlockSamples);
  threads_.run((rows + block - 1) / block, [&](int64_t task, int thread) {
    const int64_t begin = task * block;
    const int64_t end = std::min(begin + block, rows);
    version_->network.forward(static_cast<int>(end - begin),
                              features.numerical.data() + begin * deployment.num_numerical,
                              features.ids.data() + begin * deployment.num_slots,
                              features.scale.data() + begin * deployment.num_list_slots,
                              answers.logit.data() + begin, scratch_[static_cast<size_t>(thread)]);
    for (int64_t row = begin; row < end; ++row) {
      const auto at = static_cast<size_t>(row);
      answers.probability[at] = 1 / (1 + std::exp(-answers.logit[at]));
    }
  });
  return answers;
}

void check_answers(const Answers& answers, int64_t begin, int64_t rows) {
  check_answer("probability", answers.probability.data() + begin, rows);
  check_answer("logit", answers.logit.data() + begin, rows);
}

}  // namespace recsys::serve
