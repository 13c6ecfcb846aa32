// SPDX-License-Identifier: Apache-2.0
// Reads JSON from this project and the server: deployment.json, the header of safetensors, the
// configuration of a model.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace recsys::serve {

struct JsonError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A value. Access as another kind throws a JsonError.
class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  // Throws a JsonError with the position if the text is not JSON.
  static Json parse(std::string_view text);

  bool is_null() const { return kind_ == Kind::kNull; }

  // Member of an object; null if it is missing.
  const Json* find(std::string_view key) const;
  // Member of an object; throws a JsonError if it is missing.
  const Json& at(std::string_view key) const;
  // Members of an object, in order.
  const std::vector<std::pair<std::string, Json>>& members() const;
  const std::vector<Json>& items() const;
  const std::string& string() const;
  bool boolean() const;
  int64_t integer() const;
  std::vector<int64_t> integers() const;

 private:
  friend class JsonParser;

  Kind kind_ = Kind::kNull;
  bool boolean_ = false;
  std::string text_;  // the string, or the digits of a number
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace recsys::serve
