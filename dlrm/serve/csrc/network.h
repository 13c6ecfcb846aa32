// SPDX-License-Identifier: Apache-2.0
// The networks of a deployed DLRM: shared tables; a bottom MLP, interaction and top MLP for each.
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

// How numerical features become vectors; defined by dlrm/nn/numerical.py.
enum class NumericalKind : uint8_t { kNone, kBins, kPiecewiseLinear };

// A version, as described by its deployment.json.
struct Deployment {
  // Throws std::runtime_error if the file is damaged, or the model is not supported.
  explicit Deployment(const std::string& folder);

  int64_t num_numerical = 0;  // M
  int64_t dim = 0;            // D
  int64_t num_networks = 1;   // N; the logits of the networks are averaged
  bool concatenates = false;  // vectors are concatenated; otherwise their dot products are used
  NumericalKind numerical_kind = NumericalKind::kNone;
  int64_t numerical_bins = 0;    // T, intervals of a numerical feature with a vector
  int64_t statistics_slots = 0;  // S, slots for ids and pairs of ids; 0 without statistics
  std::vector<int64_t> table_sizes;
  // Slots of each feature in a row: 1, or the greatest length of a list.
  std::vector<int64_t> widths;
  int64_t num_slots = 0;
  int64_t num_list_slots = 0;
  size_t num_singles = 0;  // features with one id, which come first
  std::vector<int64_t> bottom_sizes;
  std::vector<int64_t> top_sizes;
  bool hash_indices = false;
  bool refuses_bad_ids = false;  // otherwise they count as 0 or are hashed
  bool takes_raw_rows = false;
};

// The vectors of numerical features of a network.
class NumericalEmbedding {
 public:
  // name: prefix of the names of the weights. Throws std::runtime_error if weights are missing.
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
  AlignedFloats bottom_mlp;
  AlignedFloats top_mlp;
  std::vector<int64_t> ids;  // [F] ids of a sample, inside their tables; only with statistics
  AlignedFloats joined;      // [batch, 2 C + width], statistics and features; only with statistics
  AlignedFloats bottom;
  AlignedFloats vectors;   // [batch, M + F, D]; empty if the interaction reads only table rows
  AlignedFloats features;  // [batch, width], output of the interaction
  AlignedFloats logits;
  std::vector<int64_t> rows;
};

class Network {
 public:
  // Throws std::runtime_error if the weights are missing or damaged.
  Network(const std::string& folder, const Deployment& deployment);

  NetworkScratch make_scratch() const;

  // numerical: [batch, M]; ids: [batch, slots]; scale: [batch, list slots], the factor of each id
  // of a list; logits: [batch]; batch <= kBlockSamples.
  void forward(int batch, const float* numerical, const int64_t* ids, const float* scale,
               float* logits, NetworkScratch& scratch) const;

 private:
  // The dense part of a network; all networks have the same shape.
  struct Dense {
    Mlp bottom;
    Mlp top;
    std::vector<NumericalEmbedding> numerical;  // one or none
  };

  // The table is [R, N * D]; viewed as [R * N, D], it has one row per network.
  int64_t find_row(int64_t network, size_t feature, int64_t id) const;
  int64_t id_in_table(size_t feature, int64_t id) const;
  // These write the first columns of `joined`, the same for all networks, and the other columns.
  void read_statistics(int batch, const int64_t* ids, NetworkScratch& scratch) const;
  void join_features(int batch, NetworkScratch& scratch) const;
  void find_rows(int64_t network, int batch, const int64_t* ids, int64_t* rows) const;
  // Returns whether vectors are copied before the interaction.
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
  std::vector<float> constant_;  // replaces numbers if there are none, as in training; else empty
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
  size_t num_singles_;  // features before the lists
  bool has_lists_;
  int64_t width_ = 0;  // columns of the interaction
  StoredTensor table_;
  const uint8_t* scale_ = nullptr;  // [R] float32, maybe unaligned; only for a table in 8 bits
  std::optional<IdStatistics> statistics_;
  std::vector<Dense> networks_;
};

}  // namespace recsys::serve
