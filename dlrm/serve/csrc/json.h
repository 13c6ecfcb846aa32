// SPDX-License-Identifier: Apache-2.0
// Reads JSON of this project and of the server: deployment.json, the header of safetensors, a
// model's configuration.
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

// A value. An access that does not fit its kind throws a JsonError that names the key.
class Json {
 public:
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  // Throws a JsonError with the position of what is no JSON.
  static Json parse(std::string_view text);

  bool is_null() const { return kind_ == Kind::kNull; }

  // Member of an object, or null where it has none.
  const Json* find(std::string_view key) const;
  // Member of an object that must have it.
  const Json& at(std::string_view key) const;
  // Members of an object, in their order.
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
  std::string text_;  // of a string, or the digits of a number
  std::vector<Json> items_;
  std::vector<std::pair<std::string, Json>> members_;
};

}  // namespace recsys::serve
