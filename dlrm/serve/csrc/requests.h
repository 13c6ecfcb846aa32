// SPDX-License-Identifier: Apache-2.0
// Requests and their checks, in the words of recsys/serve/client/requests.py.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace recsys::serve {

// A request with a wrong value, named in the message.
struct BadRequest : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A tensor of a request. Data may lie at any address.
struct InputTensor {
  std::string name;
  std::string dtype;  // as NumPy calls it: float32, int64, bool, and object for strings
  std::vector<int64_t> shape;
  const uint8_t* data;
  uint64_t bytes;

  int64_t rows() const { return shape.empty() ? 0 : shape[0]; }
};

// What a request must have: [rows, columns] of a type, `string` for strings.
struct ExpectedTensor {
  std::string name;
  std::string dtype;
  int64_t columns;
};

using Request = std::vector<InputTensor>;

const InputTensor* find_input(const Request& request, std::string_view name);

// Throws a BadRequest where names, types, shapes, numbers of rows or numbers are wrong.
void check_tensors(const std::vector<ExpectedTensor>& expected, const Request& request);

// Reads the strings of a checked tensor; BadRequest where it is cut off.
std::vector<std::string_view> read_strings(const InputTensor& tensor);

// Throws a BadRequest where an id is outside its table. ids: [rows, sum of widths], so many of each
// feature.
void check_ids(const int64_t* ids, int64_t rows, const std::vector<int64_t>& table_sizes,
               const std::vector<int64_t>& widths);

// Throws a BadRequest where an answer is no finite number.
void check_answer(const char* name, const float* values, int64_t rows);

// Words with commas between.
std::string joined(const std::vector<std::string>& words);

}  // namespace recsys::serve
