// SPDX-License-Identifier: Apache-2.0
#include "weights_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace recsys::serve {
namespace {

constexpr const char* kRemedy = "; deploy the checkpoint again";

int64_t bytes_of(const std::string& dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "F32") return 4;
  if (dtype == "BF16") return 2;
  return dtype == "I8" ? 1 : 0;
}

std::string shown(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::runtime_error damaged(const std::string& path, const std::string& reason) {
  return std::runtime_error(path + ": " + reason + kRemedy);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Not fstat: its symbol exists only since glibc 2.33, and wheels must load with 2.28 (setup.py).
  const off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
  if (bytes < 0) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) close(fd);
    throw damaged(path, reason);
  }
  const auto size = static_cast<size_t>(bytes);
  void* const data = size == 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (data == MAP_FAILED) throw damaged(path, "cannot be mapped");
  bytes_ = {static_cast<const char*>(data), size};
}

MappedFile::~MappedFile() { munmap(const_cast<char*>(bytes_.data()), bytes_.size()); }

WeightsFile::WeightsFile(const std::string& path) : path_(path), file_(path) {
  const std::string_view bytes = file_.bytes();
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) throw damaged(path, "is cut off");
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > bytes.size() - sizeof(header_bytes)) throw damaged(path, "is cut off");
  begin_ = sizeof(header_bytes) + header_bytes;
  try {
    header_ = Json::parse(bytes.substr(sizeof(header_bytes), header_bytes));
    header_.members();
  } catch (const JsonError& error) {
    throw damaged(path, error.what());
  }
}

StoredTensor WeightsFile::tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  try {
    const Json& entry = header_.at(name);
    StoredTensor tensor{entry.at("dtype").string(), entry.at("shape").integers(), nullptr};
    auto bytes = static_cast<uint64_t>(bytes_of(tensor.dtype));
    bool fits = tensor.shape == shape && bytes > 0;
    for (const int64_t length : shape) {
      fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(length), &bytes);
    }
    if (!fits) {
      throw damaged(path_, name + " is " + tensor.dtype + " " + shown(tensor.shape) +
                               ", expected " + shown(shape));
    }
    const std::vector<int64_t> ends = entry.at("data_offsets").integers();
    const uint64_t room = file_.bytes().size() - begin_;
    if (ends.size() != 2 || ends[0] < 0 || static_cast<uint64_t>(ends[0]) > room ||
        bytes > room - static_cast<uint64_t>(ends[0]) ||
        static_cast<uint64_t>(ends[1] - ends[0]) != bytes) {
      throw damaged(path_, name + " is outside the file");
    }
    tensor.data = reinterpret_cast<const uint8_t*>(file_.bytes().data()) + begin_ + ends[0];
    return tensor;
  } catch (const JsonError& error) {
    throw damaged(path_, name + ": " + error.what());
  }
}

std::vector<float> WeightsFile::floats(const std::string& name,
                                       const std::vector<int64_t>& shape) const {
  const StoredTensor stored = tensor(name, shape);
  if (stored.dtype != "F32") {
    throw std::runtime_error(name + ": expected float32 weights, got " + stored.dtype);
  }
  size_t count = 1;
  for (const int64_t length : shape) count *= static_cast<size_t>(length);
  std::vector<float> values(count);
  std::memcpy(values.data(), stored.data, values.size() * sizeof(float));
  return values;
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(path + ": cannot be read" + kRemedy);
  return text.str();
}

}  // namespace recsys::serve
