// SPDX-License-Identifier: Apache-2.0
#include "pair_counts.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace recsys::serve {
namespace {

constexpr int64_t kMostCells = 1 << 22;

}  // namespace

PairCounts::PairCounts(const WeightsFile& file, std::vector<int64_t> table_sizes)
    : table_sizes_(std::move(table_sizes)) {
  for (size_t a = 0; a < table_sizes_.size(); ++a) {
    for (size_t b = a + 1; b < table_sizes_.size(); ++b) {
      const bool is_large = table_sizes_[a] > kMostCells / table_sizes_[b];
      cells_.push_back(is_large ? kMostCells : table_sizes_[a] * table_sizes_[b]);
    }
  }
  const auto pairs = static_cast<int64_t>(cells_.size());
  const int64_t cells = std::accumulate(cells_.begin(), cells_.end(), int64_t{0});
  counts_ = file.tensor("pair_counts.counts", {cells});
  if (counts_.dtype != "F32") throw std::runtime_error("pair_counts.counts is not float32");
  mean_ = file.floats("pair_counts.mean", {pairs});
  std_ = file.floats("pair_counts.std", {pairs});
}

void PairCounts::forward(const int64_t* ids, float* numbers) const {
  const uint8_t* counts = counts_.data;
  size_t pair = 0;
  for (size_t a = 0; a < table_sizes_.size(); ++a) {
    for (size_t b = a + 1; b < table_sizes_.size(); ++b, ++pair) {
      const int64_t cell = (ids[a] * table_sizes_[b] + ids[b]) % cells_[pair];
      float count;
      std::memcpy(&count, counts + cell * int64_t{sizeof(count)}, sizeof(count));
      numbers[pair] = (std::log1p(count) - mean_[pair]) / std_[pair];
      counts += cells_[pair] * int64_t{sizeof(count)};
    }
  }
}

}  // namespace recsys::serve
