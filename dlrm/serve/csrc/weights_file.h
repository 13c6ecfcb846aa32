// SPDX-License-Identifier: Apache-2.0
// The weights of a version: a file of safetensors, mapped and shared by all that open it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace recsys::serve {

// A tensor in the file. Data may lie at any address.
struct StoredTensor {
  std::string dtype;  // I64, F32, BF16, I8
  std::vector<int64_t> shape;
  const uint8_t* data;
};

// A whole file, mapped.
class MappedFile {
 public:
  // Throws std::runtime_error where the file is missing or empty.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::string_view bytes() const { return bytes_; }

 private:
  std::string_view bytes_;
};

class WeightsFile {
 public:
  // Throws std::runtime_error where the file is missing or damaged.
  explicit WeightsFile(const std::string& path);

  // Throws std::runtime_error where it is missing, outside the file, or of another shape.
  StoredTensor tensor(const std::string& name, const std::vector<int64_t>& shape) const;

  // Copies a tensor of float32. Throws as `tensor`, and where the tensor is of another type.
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::string path_;
  MappedFile file_;
  uint64_t begin_ = 0;  // of the data
  Json header_;
};

// Reads a whole file; std::runtime_error where that fails.
std::string read_text(const std::string& path);

}  // namespace recsys::serve
