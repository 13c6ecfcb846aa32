// SPDX-License-Identifier: Apache-2.0
// Requests for the native backend, of features, lines and fields.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

constexpr int64_t kMostRows = 200;
constexpr int kNumerical = 13;
constexpr int kCategorical = 26;

// A tensor in a block of its own, so that reading past its end is seen.
struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;
};

template <typename Value>
Tensor tensor_of(const char* name, const char* dtype, int64_t rows, const std::vector<Value>& all) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(all.data());
  const int64_t columns = rows == 0 ? 0 : static_cast<int64_t>(all.size()) / rows;
  return {name, dtype, {rows, columns}, {begin, begin + all.size() * sizeof(Value)}};
}

inline Tensor strings(const char* name, int64_t rows, const std::vector<std::string>& all) {
  Tensor tensor = tensor_of<uint8_t>(name, "object", rows, {});
  tensor.shape[1] = rows == 0 ? 0 : static_cast<int64_t>(all.size()) / rows;
  for (const std::string& text : all) {
    const auto length = static_cast<uint32_t>(text.size());
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&length);
    tensor.data.insert(tensor.data.end(), bytes, bytes + sizeof(length));
    tensor.data.insert(tensor.data.end(), text.begin(), text.end());
  }
  return tensor;
}

inline std::vector<Tensor> features(int64_t rows, std::mt19937& random) {
  std::vector<float> numbers(static_cast<size_t>(rows * kNumerical));
  std::vector<int64_t> ids(static_cast<size_t>(rows * kCategorical));
  for (float& number : numbers) number = static_cast<float>(random() % 1000) / 100 - 5;
  for (int64_t& id : ids) id = random() % 3;
  return {tensor_of("numerical", "float32", rows, numbers),
          tensor_of("categorical", "int64", rows, ids)};
}

inline std::string category(std::mt19937& random) {
  char text[9] = "";
  if (random() % 5 != 0) std::snprintf(text, sizeof(text), "%x", static_cast<unsigned>(random()));
  return text;
}

inline std::vector<Tensor> lines(int64_t rows, std::mt19937& random) {
  std::vector<std::string> all;
  for (int64_t row = 0; row < rows; ++row) {
    std::string line;
    for (int field = 0; field < kNumerical; ++field) line += std::to_string(random() % 99) + '\t';
    for (int field = 0; field < kCategorical; ++field) {
      line += category(random) + (field + 1 < kCategorical ? "\t" : "");
    }
    all.push_back(line);
  }
  return {strings("line", rows, all)};
}

inline std::vector<Tensor> fields(int64_t rows, std::mt19937& random) {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < rows * (kNumerical + kCategorical); ++i) {
    const bool is_number = i % (kNumerical + kCategorical) < kNumerical;
    texts.push_back(is_number ? std::to_string(random() % 99) : category(random));
  }
  return {strings("fields", rows, texts)};
}

inline std::vector<Tensor> request(int64_t rows, std::mt19937& random) {
  const auto kind = random() % 3;
  return kind == 0   ? features(rows, random)
         : kind == 1 ? lines(rows, random)
                     : fields(rows, random);
}
