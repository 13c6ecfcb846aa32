// SPDX-License-Identifier: Apache-2.0
// The networks of a deployed DLRM: tables, and bottom MLP, interaction and top MLP of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "id_statistics.h"
#include "json.h"
#include "mlp.h"
#include "weights_file.h"

namespace recsys::serve {

// How numerical features become vectors: dlrm/nn/numerical.py defines both ways.
enum class NumericalKind : uint8_t { kNone, kBins, kPiecewiseLinear };

// A version as its deployment.json describes it.
struct Deployment {
  // Throws std::runtime_error where the file is damaged, or of a model that is not served here.
  explicit Deployment(const std::string& folder);

  int64_t num_numerical = 0;  // M
  int64_t dim = 0;            // D
  int64_t num_networks = 1;   // N, whose logits are averaged
  bool concatenates = false;  // the vectors, in place of their dot products
  NumericalKind numerical_kind = NumericalKind::kNone;
  int64_t numerical_bins = 0;    // T, intervals of a numerical feature with a vector
  int64_t statistics_slots = 0;  // S, of ids and pairs of ids; 0 without
  std::vector<int64_t> table_sizes;
  // Ids of each feature in a row, in slots: one, or the most of a list.
  std::vector<int64_t> widths;
  int64_t num_slots = 0;
  int64_t num_list_slots = 0;
  size_t num_singles = 0;  // features of one id, which come first
  std::vector<int64_t> bottom_sizes;
  std::vector<int64_t> top_sizes;
  bool hash_indices = false;
  bool refuses_bad_ids = false;  // else they count as 0, or are hashed
  bool takes_raw_rows = false;
};

// The vectors of numerical features of a network.
class NumericalEmbedding {
 public:
  // name: that of the weights; num_features: M. Throws std::runtime_error where they are missing.
  NumericalEmbedding(const WeightsFile& file, const std::string& name,
                     const Deployment& deployment);

  // Writes the [M, D] vectors of the [M] features of a sample.
  void forward(const float* numerical, float* vectors) const;

 private:
  NumericalKind kind_;
  int64_t num_bins_;
  int64_t dim_;
  std::vector<float> knots_;   // [M, T + 1]
  std::vector<float> weight_;  // [M, T, D]
  // [M, T + 1, D] sums of the bias and of the weights of all intervals before each knot.
  std::vector<float> before_;
};

// Buffers of a thread.
struct NetworkScratch {
  MlpScratch bottom_mlp;
  MlpScratch top_mlp;
  std::vector<int64_t> ids;  // [F] of a sample, within their tables; of a model with statistics
  AlignedFloats joined;      // [batch, 2 C + width], its statistics and the features
  AlignedFloats bottom;
  AlignedFloats vectors;  // [batch, M + F, D]; not if the interaction reads rows of the table alone
  AlignedFloats features;  // [batch, width], of the interaction
  AlignedFloats logits;
  std::vector<int64_t> rows;
};

class Network {
 public:
  // Throws std::runtime_error where the weights are missing or damaged.
  Network(const std::string& folder, const Deployment& deployment);

  NetworkScratch make_scratch() const;

  // numerical: [batch, M]; ids: [batch, slots]; scale: [batch, list slots], the factor of each id
  // of a list; logits: [batch]; batch <= kBlockSamples.
  void forward(int batch, const float* numerical, const int64_t* ids, const float* scale,
               float* logits, NetworkScratch& scratch) const;

 private:
  // What follows the lookup; all networks are of one shape.
  struct Dense {
    Mlp bottom;
    Mlp top;
    std::vector<NumericalEmbedding> numerical;  // one or none
  };

  // The table is [R, N * D], and as [R * N, D] holds a row for each network.
  int64_t find_row(int64_t network, size_t feature, int64_t id) const;
  int64_t id_in_table(size_t feature, int64_t id) const;
  // Write the first columns of `joined`, the same for all networks, and the others.
  void read_statistics(int batch, const int64_t* ids, NetworkScratch& scratch) const;
  void join_features(int batch, NetworkScratch& scratch) const;
  void find_rows(int64_t network, int batch, const int64_t* ids, int64_t* rows) const;
  // Whether vectors are copied before they interact.
  bool reads_vectors() const;
  void read_vectors(int64_t network, int batch, const float* numerical, const int64_t* ids,
                    const float* scale, NetworkScratch& scratch) const;
  void interact(int64_t network, int batch, const float* numerical, const int64_t* ids,
                const float* scale, NetworkScratch& scratch) const;
  void sum_lists(int64_t network, const int64_t* ids, const float* scale, float* vectors) const;
  void read_rows(int64_t count, const int64_t* rows, float* vectors) const;
  void add_row(int64_t row, float factor, float* vector) const;

  const ServingKernels& kernels_ = kernels();
  WeightsFile file_;
  std::vector<float> constant_;  // in place of numbers, as in training; else empty
  int64_t dim_;
  int64_t num_networks_;
  bool concatenates_;
  bool hash_indices_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> starts_;
  std::vector<int64_t> widths_;
  int64_t num_numerical_;
  int64_t num_numerical_vectors_;  // num_numerical_ or 0
  int64_t num_slots_;
  int64_t num_list_slots_;
  size_t num_singles_;  // features before those of lists
  bool has_lists_;
  int64_t width_ = 0;  // columns of the interaction
  StoredTensor table_;
  const uint8_t* scale_ = nullptr;  // [R] float32 at any address; of a table in 8 bits
  std::optional<IdStatistics> statistics_;
  std::vector<Dense> networks_;
};

}  // namespace recsys::serve
