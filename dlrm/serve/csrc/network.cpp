// SPDX-License-Identifier: Apache-2.0
#include "network.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "checksum.h"

namespace recsys::serve {
namespace {

constexpr int64_t kMaxVectors = 64;
constexpr int64_t kMaxDim = 256;
constexpr int64_t kPadMultiple = 8;
constexpr int64_t kWidestLayer = 1 << 20;
constexpr int64_t kMaxListLength = 10000;
constexpr int64_t kMostNetworks = 1024;
constexpr int64_t kMostSlots = int64_t{1} << 31;
constexpr int64_t kMostBins = 255;

// Returns the columns of the interaction: vector 0, the dot products, and padding.
int64_t interaction_width(int64_t num_vectors, int64_t dim) {
  const int64_t used = dim + num_vectors * (num_vectors - 1) / 2;
  return (used + kPadMultiple - 1) / kPadMultiple * kPadMultiple;
}

std::vector<int64_t> with_input(int64_t inputs, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> result = {inputs};
  result.insert(result.end(), sizes.begin(), sizes.end());
  return result;
}

void require(bool fits, const std::string& expected) {
  if (!fits) throw JsonError("the native backend serves " + expected);
}

NumericalKind kind_of(const std::string& name) {
  require(name == "none" || name == "bins" || name == "piecewise_linear",
          "numerical embeddings none, bins and piecewise_linear");
  if (name == "none") return NumericalKind::kNone;
  return name == "bins" ? NumericalKind::kBins : NumericalKind::kPiecewiseLinear;
}

void check_layers(const std::vector<int64_t>& sizes, int64_t last) {
  for (const int64_t size : sizes)
    require(size >= 1 && size <= kWidestLayer, "layers of 1 to 2^20");
  require(!sizes.empty() && sizes.back() == last, "MLPs that end with the sizes of a DLRM");
}

}  // namespace

Deployment::Deployment(const std::string& folder) {
  const std::string path = folder + "/deployment.json";
  const std::string text = read_text(path);
  try {
    const Json json = Json::parse(text);
    require(json.at("format_name").string() == "recsys-recipes deployment" &&
                json.at("format_version").integer() == 2,
            "deployments of this project");
    check_version(folder, text, json);
    require(json.at("kind").string() == "dlrm", "only DLRM");
    require(json.at("format").string() == "eager", "only the format eager");
    require(json.at("precision").string() == "float32", "float32");
    const Json& model = json.at("model");
    const Json& config = model.at("config");
    const std::string& interaction = config.at("interaction_op").string();
    concatenates = interaction == "cat";
    require(concatenates || interaction == "dot" || interaction == "cuda_dot",
            "dot products and concatenation");
    require(!config.at("batch_norm").boolean(), "MLPs without batch norm");
    num_numerical = config.at("num_numerical_features").integer();
    numerical_kind = kind_of(config.at("numerical_embedding").string());
    numerical_bins = config.at("numerical_bins").integer();
    require(numerical_bins >= 2 && numerical_bins <= kMostBins, "2 to 255 numerical bins");
    statistics_slots = config.at("id_statistics").integer();
    require(statistics_slots == 0 || (statistics_slots >= 2 && statistics_slots <= kMostSlots),
            "at least 2 slots of statistics");
    dim = config.at("embedding_dim").integer();
    num_networks = config.at("seeds").integer();
    hash_indices = config.at("hash_indices").boolean();
    bottom_sizes = config.at("bottom_mlp_sizes").integers();
    top_sizes = config.at("top_mlp_sizes").integers();
    table_sizes = model.at("table_sizes").integers();
    const Json& largest = config.at("max_table_size");
    for (int64_t& size : table_sizes) {
      if (!largest.is_null()) size = std::min(size, largest.integer());
      require(size >= 1, "tables with at least 1 row");
    }
    const Json* const stored_widths = model.find("widths");  // only for a model with lists
    widths = stored_widths == nullptr ? std::vector<int64_t>(table_sizes.size(), 1)
                                      : stored_widths->integers();
    require(widths.size() == table_sizes.size(), "one width per feature");
    for (const int64_t width : widths) {
      require(width >= 1 && width <= kMaxListLength, "lists of 1 to 10,000 elements");
      num_slots += width;
    }
    const auto num_vectors = static_cast<int64_t>(table_sizes.size()) + 1 +
                             (numerical_kind == NumericalKind::kNone ? 0 : num_numerical);
    require(num_vectors >= 2 || (concatenates && num_numerical > 0),
            "at least 1 categorical feature, or numerical features with vectors");
    require(concatenates || num_vectors <= kMaxVectors, "dot products of 1 to 63 features");
    require(num_networks >= 1 && num_networks <= kMostNetworks, "1 to 1,024 networks");
    require(dim >= 1 && dim <= (concatenates ? kWidestLayer : kMaxDim),
            "1 to 256 columns of an embedding");
    require(num_numerical >= 0 && num_numerical <= kWidestLayer, "up to 2^20 numerical features");
    check_layers(bottom_sizes, dim);
    check_layers(top_sizes, 1);
    refuses_bad_ids = json.at("out_of_range").string() == "error" && !hash_indices;
    for (const Json& input : json.at("signature").at("inputs").items()) {
      takes_raw_rows = takes_raw_rows || input.at("name").string() == "line";
      if (input.at("name").string() == "factors") {
        num_list_slots = input.at("shape").integers().at(0);
      }
    }
    // Lists come last.
    int64_t lists = 0;
    num_singles = widths.size();
    while (num_singles > 0 && lists < num_list_slots) lists += widths[--num_singles];
    require(lists == num_list_slots && num_slots - lists == static_cast<int64_t>(num_singles),
            "lists after all other features");
    require(statistics_slots == 0 || (num_list_slots == 0 && !table_sizes.empty()),
            "statistics of ids only without lists");
  } catch (const JsonError& error) {
    throw std::runtime_error(path + ": " + error.what() + "; deploy the checkpoint again");
  }
}

NumericalEmbedding::NumericalEmbedding(const WeightsFile& file, const std::string& name,
                                       const Deployment& deployment)
    : kind_(deployment.numerical_kind), num_bins_(deployment.numerical_bins), dim_(deployment.dim) {
  const int64_t features = deployment.num_numerical;
  knots_ = file.floats(name + ".knots", {features, num_bins_ + 1});
  weight_ = file.floats(name + ".weight", {features, num_bins_, dim_});
  if (kind_ == NumericalKind::kBins) return;
  const std::vector<float> bias = file.floats(name + ".bias", {features, dim_});
  before_.resize(static_cast<size_t>(features * (num_bins_ + 1) * dim_));
  for (int64_t m = 0; m < features; ++m) {
    const float* const knots = knots_.data() + m * (num_bins_ + 1);
    float* sum = before_.data() + m * (num_bins_ + 1) * dim_;
    std::copy_n(bias.data() + m * dim_, dim_, sum);
    for (int64_t t = 0; t < num_bins_; ++t, sum += dim_) {
      const float* const weight = weight_.data() + (m * num_bins_ + t) * dim_;
      const bool is_interval = knots[t] < knots[t + 1];  // a repeated knot encodes nothing
      for (int64_t d = 0; d < dim_; ++d) sum[dim_ + d] = sum[d] + (is_interval ? weight[d] : 0.0F);
    }
  }
}

void NumericalEmbedding::forward(const float* numerical, float* vectors) const {
  const auto features = static_cast<int64_t>(knots_.size()) / (num_bins_ + 1);
  for (int64_t m = 0; m < features; ++m, vectors += dim_) {
    const float x = numerical[m];
    const float* const knots = knots_.data() + m * (num_bins_ + 1);
    const float* const weights = weight_.data() + m * num_bins_ * dim_;
    if (kind_ == NumericalKind::kBins) {
      const auto bin = std::upper_bound(knots + 1, knots + num_bins_, x) - (knots + 1);
      std::copy_n(weights + bin * dim_, dim_, vectors);
      continue;
    }
    // The number of knots at or below x, repetitions of the last knot included.
    const int64_t passed = std::upper_bound(knots, knots + num_bins_ + 1, x) - knots;
    const int64_t interval = std::max<int64_t>(passed - 1, 0);
    const float* const before = before_.data() + (m * (num_bins_ + 1) + interval) * dim_;
    const bool is_inside = passed > 0 && interval < num_bins_;
    const float share =
        is_inside ? (x - knots[interval]) / (knots[interval + 1] - knots[interval]) : 0.0F;
    const float* const weight = weights + std::min(interval, num_bins_ - 1) * dim_;
    for (int64_t d = 0; d < dim_; ++d) {
      vectors[d] = std::max(before[d] + share * weight[d], 0.0F);
    }
  }
}

Network::Network(const std::string& folder, const Deployment& deployment)
    : file_(folder + "/weights.safetensors"),
      constant_(deployment.num_numerical > 0 ? 0 : kBlockSamples, 1.0F),
      dim_(deployment.dim),
      num_networks_(deployment.num_networks),
      concatenates_(deployment.concatenates),
      hash_indices_(deployment.hash_indices),
      sizes_(deployment.table_sizes),
      widths_(deployment.widths),
      num_numerical_(deployment.num_numerical),
      num_numerical_vectors_(
          deployment.numerical_kind == NumericalKind::kNone ? 0 : deployment.num_numerical),
      num_slots_(deployment.num_slots),
      num_list_slots_(deployment.num_list_slots),
      num_singles_(deployment.num_singles),
      has_lists_(deployment.num_list_slots > 0) {
  const int64_t num_vectors = 1 + num_numerical_vectors_ + static_cast<int64_t>(sizes_.size());
  if (deployment.statistics_slots > 0) {
    statistics_.emplace(file_, sizes_, deployment.statistics_slots);
  }
  const int64_t numbers = std::max<int64_t>(num_numerical_, 1);
  width_ = concatenates_ ? num_vectors * dim_ : interaction_width(num_vectors, dim_);
  const int64_t num_inputs = width_ + (statistics_ ? statistics_->size() : 0);
  for (int64_t n = 0; n < num_networks_; ++n) {
    const std::string prefix = n == 0 ? "" : std::to_string(n) + ".";
    networks_.push_back(
        {Mlp(file_, prefix + "bottom_mlp", with_input(numbers, deployment.bottom_sizes), true),
         Mlp(file_, prefix + "top_mlp", with_input(num_inputs, deployment.top_sizes), false),
         {}});
    if (num_numerical_vectors_ > 0) {
      networks_.back().numerical.emplace_back(file_, prefix + "numerical_embedding", deployment);
    }
  }
  int64_t num_rows = 0;
  for (const int64_t size : sizes_) {
    starts_.push_back(num_rows);
    num_rows += size;
  }
  table_ = file_.tensor("embeddings.table", {num_rows, num_networks_ * dim_});
  if (table_.dtype == "I8") {
    const StoredTensor scale = file_.tensor("embeddings.scale", {num_rows});
    if (scale.dtype != "F32") throw std::runtime_error("embeddings.scale is not float32");
    if (has_lists_) throw std::runtime_error("a table in 8 bits does not support lists");
    scale_ = scale.data;
  }
}

NetworkScratch Network::make_scratch() const {
  const auto num_features = static_cast<int64_t>(sizes_.size());
  const Dense& dense = networks_.front();
  NetworkScratch scratch;
  scratch.bottom_mlp = dense.bottom.make_scratch();
  scratch.top_mlp = dense.top.make_scratch();
  if (statistics_) {
    scratch.joined = AlignedFloats(kBlockSamples * dense.top.num_inputs());
    scratch.ids.resize(sizes_.size());
  }
  scratch.bottom = AlignedFloats(kBlockSamples * dim_);
  scratch.features = AlignedFloats(kBlockSamples * width_);
  scratch.logits = AlignedFloats(kBlockSamples);
  if (reads_vectors()) {
    scratch.vectors = AlignedFloats(kBlockSamples * (num_numerical_vectors_ + num_features) * dim_);
  }
  scratch.rows.resize(static_cast<size_t>(kBlockSamples * num_features));
  return scratch;
}

void Network::forward(int batch, const float* numerical, const int64_t* ids, const float* scale,
                      float* logits, NetworkScratch& scratch) const {
  const float* const numbers = constant_.empty() ? numerical : constant_.data();
  if (statistics_) read_statistics(batch, ids, scratch);
  for (int64_t n = 0; n < num_networks_; ++n) {
    const Dense& dense = networks_[static_cast<size_t>(n)];
    dense.bottom.forward(batch, numbers, scratch.bottom.data(), scratch.bottom_mlp);
    interact(n, batch, numerical, ids, scale, scratch);
    float* const of_network = n == 0 ? logits : scratch.logits.data();
    if (statistics_) join_features(batch, scratch);
    const float* const features = statistics_ ? scratch.joined.data() : scratch.features.data();
    dense.top.forward(batch, features, of_network, scratch.top_mlp);
    for (int i = 0; n > 0 && i < batch; ++i) logits[i] += of_network[i];
  }
  if (num_networks_ == 1) return;
  for (int i = 0; i < batch; ++i) logits[i] /= static_cast<float>(num_networks_);
}

void Network::read_statistics(int batch, const int64_t* ids, NetworkScratch& scratch) const {
  float* joined = scratch.joined.data();
  for (int sample = 0; sample < batch; ++sample, joined += statistics_->size() + width_) {
    for (size_t f = 0; f < sizes_.size(); ++f) scratch.ids[f] = id_in_table(f, *ids++);
    statistics_->forward(scratch.ids.data(), joined);
  }
}

void Network::join_features(int batch, NetworkScratch& scratch) const {
  const float* features = scratch.features.data();
  float* joined = scratch.joined.data();
  for (int sample = 0; sample < batch; ++sample, features += width_) {
    joined = std::copy_n(features, width_, joined + statistics_->size());
  }
}

bool Network::reads_vectors() const {
  return has_lists_ || scale_ != nullptr || concatenates_ || num_numerical_vectors_ > 0;
}

void Network::read_vectors(int64_t network, int batch, const float* numerical, const int64_t* ids,
                           const float* scale, NetworkScratch& scratch) const {
  const auto num_features = static_cast<int64_t>(sizes_.size());
  const int64_t* rows = scratch.rows.data();
  float* vectors = scratch.vectors.data();
  for (int sample = 0; sample < batch; ++sample) {
    for (const NumericalEmbedding& each : networks_[static_cast<size_t>(network)].numerical) {
      each.forward(numerical + sample * num_numerical_, vectors);
    }
    vectors += num_numerical_vectors_ * dim_;
    if (has_lists_) {
      sum_lists(network, ids + sample * num_slots_, scale + sample * num_list_slots_, vectors);
    } else {
      read_rows(num_features, rows + sample * num_features, vectors);
    }
    vectors += num_features * dim_;
  }
}

void Network::interact(int64_t network, int batch, const float* numerical, const int64_t* ids,
                       const float* scale, NetworkScratch& scratch) const {
  const int64_t num_vectors = num_numerical_vectors_ + static_cast<int64_t>(sizes_.size());
  float* const vectors = scratch.vectors.data();
  if (!has_lists_) find_rows(network, batch, ids, scratch.rows.data());
  if (reads_vectors()) read_vectors(network, batch, numerical, ids, scale, scratch);
  const float* const bottom = scratch.bottom.data();
  float* const features = scratch.features.data();
  if (concatenates_) {
    const int64_t stride = num_vectors * dim_;
    for (int64_t sample = 0; sample < batch; ++sample) {
      float* const joined = features + sample * (dim_ + stride);
      std::copy_n(bottom + sample * dim_, dim_, joined);
      std::copy_n(vectors + sample * stride, stride, joined + dim_);
    }
    return;
  }
  InteractionArguments arguments{};
  arguments.dtype = Dtype::kFloat32;
  arguments.batch = batch;
  arguments.num_vectors = static_cast<int32_t>(num_vectors + 1);
  arguments.dim = static_cast<int32_t>(dim_);
  arguments.width = static_cast<int32_t>(width_);
  arguments.first = bottom;
  arguments.first_stride = dim_;
  if (reads_vectors()) {
    arguments.rest = vectors;
    arguments.rest_stride = num_vectors * dim_;
  } else {
    arguments.table = table_.data;
    arguments.table_dtype = table_.dtype == "BF16" ? Dtype::kBFloat16 : Dtype::kFloat32;
    arguments.num_table_rows = table_.shape[0] * num_networks_;
    arguments.rows = scratch.rows.data();
    arguments.row_type = IndexType::kInt64;
  }
  arguments.output = features;
  kernels_.interaction(arguments, 0, batch);
}

void Network::find_rows(int64_t network, int batch, const int64_t* ids, int64_t* rows) const {
  const size_t num_features = sizes_.size();
  for (int64_t sample = 0; sample < batch; ++sample) {
    for (size_t f = 0; f < num_features; ++f) {
      *rows++ = find_row(network, f, *ids++);
    }
  }
}

int64_t Network::find_row(int64_t network, size_t feature, int64_t id) const {
  return (starts_[feature] + id_in_table(feature, id)) * num_networks_ + network;
}

int64_t Network::id_in_table(size_t feature, int64_t id) const {
  const int64_t size = sizes_[feature];
  if (static_cast<uint64_t>(id) < static_cast<uint64_t>(size)) return id;
  // The id was refused earlier, or is hashed, or counts as the unknown value.
  return hash_indices_ ? (id % size + size) % size : 0;
}

void Network::sum_lists(int64_t network, const int64_t* ids, const float* scale,
                        float* vectors) const {
  const size_t num_features = sizes_.size();
  for (size_t f = 0; f < num_features; ++f, vectors += dim_) {
    std::fill_n(vectors, dim_, 0.0F);
    for (int64_t slot = 0; slot < widths_[f]; ++slot, ++ids) {
      const float factor = f < num_singles_ ? 1.0F : *scale++;
      if (factor != 0.0F) add_row(find_row(network, f, *ids), factor, vectors);
    }
  }
}

void Network::add_row(int64_t row, float factor, float* vector) const {
  if (table_.dtype == "BF16") {
    const auto* const values = reinterpret_cast<const uint16_t*>(table_.data) + row * dim_;
    for (int64_t d = 0; d < dim_; ++d) {
      const uint32_t bits = uint32_t{values[d]} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      vector[d] += factor * value;
    }
  } else {
    const uint8_t* const values = table_.data + row * dim_ * int64_t{sizeof(float)};
    for (int64_t d = 0; d < dim_; ++d) {
      float value;
      std::memcpy(&value, values + d * int64_t{sizeof(value)}, sizeof(value));
      vector[d] += factor * value;
    }
  }
}

void Network::read_rows(int64_t count, const int64_t* rows, float* vectors) const {
  for (int64_t i = 0; i < count; ++i, vectors += dim_) {
    if (scale_ == nullptr) {
      std::fill_n(vectors, dim_, 0.0F);
      add_row(rows[i], 1.0F, vectors);
      continue;
    }
    const auto* const values = reinterpret_cast<const int8_t*>(table_.data) + rows[i] * dim_;
    float scale;
    std::memcpy(&scale, scale_ + rows[i] / num_networks_ * int64_t{sizeof(scale)}, sizeof(scale));
    for (int64_t d = 0; d < dim_; ++d) vectors[d] = static_cast<float>(values[d]) * scale;
  }
}

}  // namespace recsys::serve
