// SPDX-License-Identifier: Apache-2.0
// An MLP with weights packed for few and for many samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serving_kernels.h"
#include "weights_file.h"

namespace recsys::serve {

// Samples per block: activations between layers stay in the L2 cache.
constexpr int kBlockSamples = 64;
// For at most this many samples, each weight is read once, in memory order. For more, products with
// panels are faster. Measured with NVIDIA's default model.
constexpr int kFewSamples = 8;

// Floats at an address aligned for vectors.
class AlignedFloats {
 public:
  AlignedFloats() = default;
  explicit AlignedFloats(int64_t count) : numbers_(static_cast<size_t>(count) + kAlignment) {}
  float* data() {
    const auto address = reinterpret_cast<uintptr_t>(numbers_.data());
    return numbers_.data() + (kBytes - address % kBytes) % kBytes / sizeof(float);
  }

 private:
  static constexpr uintptr_t kBytes = 64;
  static constexpr size_t kAlignment = kBytes / sizeof(float);
  std::vector<float> numbers_;
};

// Buffers of a thread.
struct MlpScratch {
  AlignedFloats few;
  AlignedFloats first;
  AlignedFloats second;
};

class Mlp {
 public:
  // Reads the layers NAME.layers.0 and so on; throws std::runtime_error if one does not fit.
  Mlp(const WeightsFile& file, const std::string& name, const std::vector<int64_t>& sizes,
      bool final_relu);

  int64_t num_inputs() const { return sizes_.front(); }
  int64_t num_outputs() const { return sizes_.back(); }
  MlpScratch make_scratch() const;

  // input: [batch, num_inputs]; output: [batch, num_outputs]; batch <= kBlockSamples.
  void forward(int batch, const float* input, float* output, MlpScratch& scratch) const;

 private:
  struct Panels {
    int num_inputs;
    int num_panels;
    std::vector<float> weights;
    std::vector<float> bias;
  };

  void forward_few(int batch, const float* input, float* output, MlpScratch& scratch) const;

  const ServingKernels& kernels_ = kernels();
  std::vector<int64_t> sizes_;
  bool final_relu_;
  std::vector<float> rows_;  // weights in the layout for few samples
  std::vector<float> biases_;
  std::vector<Panels> panels_;
};

}  // namespace recsys::serve
