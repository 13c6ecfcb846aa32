// SPDX-License-Identifier: Apache-2.0
#include "id_statistics.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace recsys::serve {
namespace {

constexpr float kSmoothing = 5.0F;
constexpr int64_t kOfRemainder = 40503;
constexpr int64_t kOfQuotient = 60493;

template <typename T>
T element(const StoredTensor& tensor, int64_t index) {
  T value;
  std::memcpy(&value, tensor.data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

void require_type(const StoredTensor& tensor, const char* type) {
  if (tensor.dtype != type) {
    throw std::runtime_error("statistics of ids have type " + tensor.dtype + ", expected " + type);
  }
}

}  // namespace

IdStatistics::IdStatistics(const WeightsFile& file, std::vector<int64_t> table_sizes, int64_t slots)
    : table_sizes_(std::move(table_sizes)),
      slots_(slots),
      keys_(file.tensor("id_statistics.keys", {slots})),
      rows_(file.tensor("id_statistics.rows", {slots})),
      clicks_(file.tensor("id_statistics.clicks", {slots})),
      rate_(file.floats("id_statistics.rate", {}).front()) {
  require_type(keys_, "I64");
  require_type(rows_, "F32");
  require_type(clicks_, "F32");
  const auto features = static_cast<int64_t>(table_sizes_.size());
  const int64_t numbers = features * (features + 1);  // two for each feature and each pair
  mean_ = file.floats("id_statistics.mean", {numbers});
  scale_ = file.floats("id_statistics.scale", {numbers});
}

void IdStatistics::forward(const int64_t* ids, float* numbers) const {
  int64_t start = 0;
  int64_t place = 0;
  for (size_t a = 0; a < table_sizes_.size(); ++a) {
    look_up(start + ids[a], place++, numbers);
    start += table_sizes_[a];
  }
  for (size_t a = 0; a < table_sizes_.size(); ++a) {
    for (size_t b = a + 1; b < table_sizes_.size(); ++b) {
      look_up(start + ids[a] * table_sizes_[b] + ids[b], place++, numbers);
      start += table_sizes_[a] * table_sizes_[b];
    }
  }
}

void IdStatistics::look_up(int64_t key, int64_t place, float* numbers) const {
  const int64_t first = key % slots_;
  int64_t slot = first;
  if (element<int64_t>(keys_, slot) != key) {
    const int64_t quotient = key / slots_ % slots_;
    slot = (first * kOfRemainder + quotient * kOfQuotient) % (slots_ - 1);
  }
  const bool is_kept = element<int64_t>(keys_, slot) == key;
  const float rows = is_kept ? element<float>(rows_, slot) : 0.0F;
  const float clicks = is_kept ? element<float>(clicks_, slot) : 0.0F;
  const float clicked = clicks + kSmoothing * rate_;
  const float missed = rows - clicks + kSmoothing * (1.0F - rate_);
  const float odds = std::log(clicked / missed);
  const auto count = static_cast<size_t>(place);
  const size_t rate = mean_.size() / 2 + count;
  numbers[count] = (std::log1p(rows) - mean_[count]) * scale_[count];
  numbers[rate] = (odds - mean_[rate]) * scale_[rate];
}

}  // namespace recsys::serve
