// SPDX-License-Identifier: Apache-2.0
#include "requests.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>

namespace recsys::serve {
namespace {

// Formats a number that is not finite like Python: nan, inf or -inf.
std::string shown(float value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

uint64_t bytes_of(const std::string& dtype) {
  if (dtype == "float32") return 4;
  if (dtype == "int64") return 8;
  return 4;  // the length of a string, followed by its bytes
}

void check_finite(const InputTensor& tensor, int64_t columns) {
  const int64_t count = tensor.rows() * columns;
  for (int64_t i = 0; i < count; ++i) {
    float value;
    std::memcpy(&value, tensor.data + i * int64_t{sizeof(value)}, sizeof(value));
    if (!std::isfinite(value)) {
      throw BadRequest("input '" + tensor.name + "', row " + std::to_string(i / columns) +
                       ", feature " + std::to_string(i % columns) + ": " + shown(value) +
                       " is not a finite number");
    }
  }
}

void check_tensor(const ExpectedTensor& expected, const InputTensor& tensor) {
  const std::string name = "input '" + expected.name + "': ";
  if (tensor.dtype != (expected.dtype == "string" ? "object" : expected.dtype)) {
    throw BadRequest(name + "expected " + expected.dtype + ", got " + tensor.dtype +
                     "; values are not converted");
  }
  if (tensor.shape.size() != 2 || tensor.shape[1] != expected.columns || tensor.shape[0] < 0) {
    std::vector<std::string> lengths;
    for (const int64_t length : tensor.shape) lengths.push_back(std::to_string(length));
    throw BadRequest(name + "expected shape [rows, " + std::to_string(expected.columns) +
                     "], got [" + joined(lengths) + "]");
  }
  uint64_t bytes = bytes_of(expected.dtype) * static_cast<uint64_t>(expected.columns);
  const bool overflows =
      __builtin_mul_overflow(bytes, static_cast<uint64_t>(tensor.shape[0]), &bytes);
  if (expected.dtype == "string") {  // each string takes at least the bytes of its length
    if (overflows || tensor.bytes < bytes) throw BadRequest(name + "is cut off");
  } else if (overflows || tensor.bytes != bytes) {
    throw BadRequest(name + "has " + std::to_string(tensor.bytes) + " bytes, which are not " +
                     std::to_string(tensor.shape[0]) + " rows");
  }
  if (expected.dtype == "float32") check_finite(tensor, expected.columns);
}

}  // namespace

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

const InputTensor* find_input(const Request& request, std::string_view name) {
  for (const InputTensor& tensor : request) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

void check_tensors(const std::vector<ExpectedTensor>& expected, const Request& request) {
  std::set<std::string> known;
  for (const ExpectedTensor& tensor : expected) known.insert(tensor.name);
  std::set<std::string> unknown;
  for (const InputTensor& tensor : request) {
    if (known.count(tensor.name) == 0) unknown.insert(tensor.name);
  }
  if (!unknown.empty()) {
    throw BadRequest("unknown input '" + *unknown.begin() + "'; the model takes " +
                     joined({known.begin(), known.end()}));
  }
  std::vector<std::string> counts;
  std::set<int64_t> rows;
  for (const ExpectedTensor& wanted : expected) {
    const InputTensor* const tensor = find_input(request, wanted.name);
    if (tensor != nullptr) {
      check_tensor(wanted, *tensor);
      counts.push_back(wanted.name + " " + std::to_string(tensor->rows()));
      rows.insert(tensor->rows());
    } else {
      throw BadRequest("input '" + wanted.name + "' is missing");
    }
  }
  if (rows.size() > 1) {
    throw BadRequest("inputs differ in their number of rows: " + joined(counts));
  }
  if (rows.count(0) > 0) {
    throw BadRequest("the request has no row; leave it out, or send at least one");
  }
}

std::vector<std::string_view> read_strings(const InputTensor& tensor) {
  const int64_t count = tensor.shape[0] * tensor.shape[1];
  std::vector<std::string_view> strings;
  uint64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    const bool has_length = tensor.bytes - at >= sizeof(length);
    if (has_length) std::memcpy(&length, tensor.data + at, sizeof(length));
    if (!has_length || length > tensor.bytes - at - sizeof(length)) {
      throw BadRequest("input '" + tensor.name + "': is cut off");
    }
    at += sizeof(length);
    strings.emplace_back(reinterpret_cast<const char*>(tensor.data + at), length);
    at += length;
  }
  if (at != tensor.bytes)
    throw BadRequest("input '" + tensor.name + "': has more strings than rows");
  return strings;
}

void check_ids(const int64_t* ids, int64_t rows, const std::vector<int64_t>& table_sizes,
               const std::vector<int64_t>& widths) {
  for (int64_t row = 0; row < rows; ++row) {
    int64_t column = 0;
    for (size_t f = 0; f < table_sizes.size(); ++f) {
      for (int64_t slot = 0; slot < widths[f]; ++slot, ++column) {
        const int64_t id = *ids++;
        if (static_cast<uint64_t>(id) < static_cast<uint64_t>(table_sizes[f])) continue;
        throw BadRequest("input 'categorical', row " + std::to_string(row) + ", feature " +
                         std::to_string(column) + ": " + std::to_string(id) + " is not in [0, " +
                         std::to_string(table_sizes[f]) + ")");
      }
    }
  }
}

void check_answer(const char* name, const float* values, int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    if (!std::isfinite(values[row])) {
      throw BadRequest(std::string("output '") + name + "', row " + std::to_string(row) + ": " +
                       shown(values[row]) +
                       " is not a finite number; an input of the row is too large for this model, "
                       "or the model is damaged");
    }
  }
}

}  // namespace recsys::serve
