// SPDX-License-Identifier: Apache-2.0
// How often the ids of two features occur together: dlrm/nn/pair_counts.py defines it.
#pragma once

#include <cstdint>
#include <vector>

#include "weights_file.h"

namespace recsys::serve {

class PairCounts {
 public:
  // The file outlives the object. Throws std::runtime_error where the weights are missing.
  PairCounts(const WeightsFile& file, std::vector<int64_t> table_sizes);

  // P, pairs of F features.
  int64_t size() const { return static_cast<int64_t>(mean_.size()); }

  // Writes the [P] numbers of the [F] ids of a sample, each of which lies within its table.
  void forward(const int64_t* ids, float* numbers) const;

 private:
  std::vector<int64_t> table_sizes_;
  std::vector<int64_t> cells_;  // [P] counters of each pair
  StoredTensor counts_;         // [cells of all] float32 at any address
  std::vector<float> mean_;     // [P]
  std::vector<float> std_;      // [P]
};

}  // namespace recsys::serve
