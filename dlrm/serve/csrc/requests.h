// SPDX-License-Identifier: Apache-2.0
// Requests and their checks. The messages are those of recsys/serve/client/requests.py.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace recsys::serve {

// A request has a wrong value, which the message names.
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A tensor of a request. The data may be unaligned.
struct InputTensor {
  std::string name;
  std::string dtype;  // NumPy's name: float32, int64, bool, and object for strings
  std::vector<int64_t> shape;
  const uint8_t* data;
  uint64_t bytes;

  int64_t rows() const { return shape.empty() ? 0 : shape[0]; }
};

// An input that a request must have: [rows, columns] of a type, `string` for strings.
struct ExpectedTensor {
  std::string name;
  std::string dtype;
  int64_t columns;
};

using Request = std::vector<InputTensor>;

const InputTensor* find_input(const Request& request, std::string_view name);

// Throws BadRequest if names, types, shapes, numbers of rows or values are wrong.
void check_tensors(const std::vector<ExpectedTensor>& expected, const Request& request);

// Reads the strings of a checked tensor; throws BadRequest if it is cut off.
std::vector<std::string_view> read_strings(const InputTensor& tensor);

// Throws BadRequest if an id is outside its table. ids: [rows, sum of widths]; `widths` gives the
// number of ids of each feature.
void check_ids(const int64_t* ids, int64_t rows, const std::vector<int64_t>& table_sizes,
               const std::vector<int64_t>& widths);

// Throws BadRequest if an answer is not a finite number.
void check_answer(const char* name, const float* values, int64_t rows);

// Joins words with commas.
std::string joined(const std::vector<std::string>& words);

}  // namespace recsys::serve
