// SPDX-License-Identifier: Apache-2.0
// An MLP with weights packed in panels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving_kernels.h"
#include "weights_file.h"

namespace recsys::serve {

// Samples per block: activations between layers stay in the L2 cache.
constexpr int kBlockSamples = 64;

// Floats at an address aligned for vectors. A copy has the same floats, perhaps not aligned.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(int64_t count) : numbers_(static_cast<size_t>(count) + kAlignment) {
    const auto address = reinterpret_cast<uintptr_t>(numbers_.data());
    first_ = (kBytes - address % kBytes) % kBytes / sizeof(float);
  }
  float* data() { return numbers_.data() + first_; }
  const float* data() const { return numbers_.data() + first_; }

 private:
  static constexpr uintptr_t kBytes = 64;
  static constexpr size_t kAlignment = kBytes / sizeof(float);
  std::vector<float> numbers_;
  size_t first_ = 0;
};

class Mlp {
 public:
  // Reads the layers NAME.layers.0 and so on; throws std::runtime_error if one does not fit.
  Mlp(const WeightsFile& file, const std::string& name, const std::vector<int64_t>& sizes,
      bool final_relu);

  int64_t num_inputs() const { return sizes_.front(); }
  int64_t num_outputs() const { return sizes_.back(); }
  // Buffers of a thread.
  AlignedFloats make_scratch() const;

  // input: [batch, num_inputs]; output: [batch, num_outputs]; batch <= kBlockSamples.
  void forward(int batch, const float* input, float* output, AlignedFloats& scratch) const;

 private:
  int64_t num_layers() const { return static_cast<int64_t>(sizes_.size()) - 1; }

  const ServingKernels& kernels_ = kernels();
  std::vector<int64_t> sizes_;
  bool final_relu_;
  AlignedFloats weights_;
  std::vector<float> biases_;
};

}  // namespace recsys::serve
