// SPDX-License-Identifier: Apache-2.0
// The weights of a version: a safetensors file, mapped and shared by all processes that open it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace recsys::serve {

// A tensor in the file. The data may be unaligned.
struct StoredTensor {
  std::string dtype;  // I64, F32, BF16, I8
  std::vector<int64_t> shape;
  const uint8_t* data;
};

// A file mapped into memory.
class MappedFile {
 public:
  // Throws std::runtime_error if the file is missing or empty.
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
  // Throws std::runtime_error if the file is missing or damaged.
  explicit WeightsFile(const std::string& path);

  // Throws std::runtime_error if the tensor is missing, outside the file, or has another shape.
  StoredTensor tensor(const std::string& name, const std::vector<int64_t>& shape) const;

  // Copies a float32 tensor. Throws like `tensor`, and if the tensor has another type.
  std::vector<float> floats(const std::string& name, const std::vector<int64_t>& shape) const;

 private:
  std::string path_;
  MappedFile file_;
  uint64_t begin_ = 0;  // offset of the data
  Json header_;
};

// Reads a whole file; throws std::runtime_error if this fails.
std::string read_text(const std::string& path);

}  // namespace recsys::serve
