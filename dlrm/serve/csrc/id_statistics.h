// SPDX-License-Identifier: Apache-2.0
// How often ids and pairs of ids occur and are clicked; defined by dlrm/nn/id_statistics.py.
#pragma once

#include <cstdint>
#include <vector>

#include "weights_file.h"

namespace recsys::serve {

class IdStatistics {
 public:
  // slots: S, slots of the hash table. The file must outlive the object. Throws std::runtime_error
  // if the weights are missing.
  IdStatistics(const WeightsFile& file, std::vector<int64_t> table_sizes, int64_t slots);

  // 2 C: two numbers for each feature and each pair of features.
  int64_t size() const { return static_cast<int64_t>(mean_.size()); }

  // Writes the [2 C] numbers for the [F] ids of a sample. Each id must be inside its table.
  void forward(const int64_t* ids, float* numbers) const;

 private:
  // Writes both numbers of the combination at this place among the C.
  void look_up(int64_t key, int64_t place, float* numbers) const;

  std::vector<int64_t> table_sizes_;
  int64_t slots_;
  StoredTensor keys_;    // [S] int64; this and the next two may be unaligned
  StoredTensor rows_;    // [S] float32
  StoredTensor clicks_;  // [S] float32
  float rate_;
  std::vector<float> mean_;   // [2 C]
  std::vector<float> scale_;  // [2 C]
};

}  // namespace recsys::serve
