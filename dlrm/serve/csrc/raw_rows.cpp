// SPDX-License-Identifier: Apache-2.0
#include "raw_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "preproc/clicks/kernel/line_transform.h"

namespace recsys::serve {
namespace {

constexpr int64_t kIntegers = clicks::kNumericals;
constexpr int64_t kCategories = clicks::kCategoricals;
constexpr size_t kShownBytes = 40;

const std::vector<ExpectedTensor>& line_form() {
  static const std::vector<ExpectedTensor> form = {{"line", "string", 1, false}};
  return form;
}

const std::vector<ExpectedTensor>& field_form() {
  static const std::vector<ExpectedTensor> form = {
      {"integers", "int64", kIntegers, false},
      {"missing", "bool", kIntegers, true},
      {"categories", "string", kCategories, false},
  };
  return form;
}

BadRequest refused(uint64_t row, const std::string& reason) {
  return BadRequest("row " + std::to_string(row) + ": " + reason);
}

// Returns the field at a position, from 1, of a line that has it.
std::string_view field_of(std::string_view line, uint32_t field) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  for (; field > 1; --field) {
    const size_t tab = line.find('\t');
    line.remove_prefix(tab == std::string_view::npos ? line.size() : tab + 1);
  }
  return line.substr(0, line.find('\t'));
}

std::string explanation(std::string_view line, uint32_t reason, uint32_t field) {
  static constexpr const char* kReasons[] = {"columns", "label", "integer", "hex", "encoding"};
  static constexpr const char* kExpected[] = {
      "",
      "",
      "an integer of 32 bits, or nothing if it is missing",
      "up to 8 hexadecimal digits, or nothing if it is missing",
      "printable ASCII",
  };
  if (reason == 0) {
    return "has " + std::to_string(field) + " fields, expected " +
           std::to_string(kIntegers + kCategories) + " separated by tabs, without a label";
  }
  const std::string name =
      field <= kIntegers ? "I" + std::to_string(field) : "C" + std::to_string(field - kIntegers);
  return "field " + name + ": " + quoted(field_of(line, field).substr(0, kShownBytes)) +
         " is refused (" + kReasons[reason] + "): expected " + kExpected[reason];
}

}  // namespace

RawRows::RawRows(const std::string& path, int64_t num_numerical, int64_t num_categorical)
    : num_numerical_(num_numerical), num_categorical_(num_categorical) {
  try {
    transform_ = std::make_unique<clicks::LineTransform>(path);
    if (kIntegers != num_numerical || transform_->num_columns() != num_categorical) {
      throw std::runtime_error("is of other features than the model");
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(path + ": " + error.what() + "; deploy the checkpoint again");
  }
}

RawRows::~RawRows() = default;

bool RawRows::has_raw(const Request& request) {
  return std::any_of(request.begin(), request.end(), [](const InputTensor& tensor) {
    return tensor.name != "numerical" && tensor.name != "categorical";
  });
}

void RawRows::read(const Request& request, Features& features) {
  const InputTensor* const line = find_input(request, "line");
  const bool is_mixed =
      find_input(request, "numerical") != nullptr || find_input(request, "categorical") != nullptr;
  if (is_mixed || (line != nullptr && request.size() > 1)) {
    std::vector<std::string> names;
    for (const InputTensor& tensor : request) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    throw BadRequest("got " + joined(names) +
                     ": a request has 'line', or 'integers' and 'categories' (and 'missing'), or "
                     "'numerical' and 'categorical'");
  }
  check_tensors(line != nullptr ? line_form() : field_form(), request);
  std::vector<size_t> starts;  // of the lines, and the end of the text
  const std::string text =
      line != nullptr ? text_of_lines(*line, starts) : text_of_fields(request, starts);
  const auto rows = static_cast<int64_t>(starts.size()) - 1;
  const auto numbers_before = features.numerical.size();
  const auto ids_before = features.ids.size();
  features.numerical.resize(numbers_before + static_cast<size_t>(rows * num_numerical_));
  features.ids.resize(ids_before + static_cast<size_t>(rows * num_categorical_));
  const auto line_at = [&](size_t row) {
    return std::string_view(text).substr(starts[row], starts[row + 1] - starts[row] - 1);
  };
  try {
    clicks::RejectedLine rejected{};
    if (!transform_->run(reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                         static_cast<uint64_t>(rows), features.numerical.data() + numbers_before,
                         features.ids.data() + ids_before, &rejected)) {
      throw refused(rejected.line,
                    explanation(line_at(rejected.line), rejected.reason, rejected.field));
    }
  } catch (const clicks::LineTooLong& error) {
    const auto row =
        std::count(text.begin(), text.begin() + static_cast<int64_t>(error.offset), '\n');
    throw refused(static_cast<uint64_t>(row), "is longer than any row");
  }
  features.rows += rows;
}

std::string RawRows::text_of_lines(const InputTensor& lines, std::vector<size_t>& starts) const {
  std::string text;
  for (std::string_view line : read_strings(lines)) {
    if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    if (line.find('\n') != std::string_view::npos) {
      throw refused(starts.size(), "holds a line feed; send a line for each row");
    }
    starts.push_back(text.size());
    text.append(line);
    text += '\n';
  }
  starts.push_back(text.size());
  return text;
}

std::string RawRows::text_of_fields(const Request& request, std::vector<size_t>& starts) const {
  const InputTensor& integers = *find_input(request, "integers");
  const InputTensor& categories = *find_input(request, "categories");
  const InputTensor* const missing = find_input(request, "missing");
  const std::vector<std::string_view> strings = read_strings(categories);
  std::string text;
  for (int64_t row = 0; row < integers.rows(); ++row) {
    starts.push_back(text.size());
    for (int64_t c = 0; c < kCategories; ++c) {
      const std::string_view category = strings[static_cast<size_t>(row * kCategories + c)];
      if (category.find_first_of("\t\n") != std::string_view::npos) {
        throw refused(static_cast<uint64_t>(row),
                      "field C" + std::to_string(c + 1) + ": holds a tab or a line feed");
      }
    }
    for (int64_t i = 0; i < kIntegers; ++i) {
      int64_t value;
      const int64_t at = row * kIntegers + i;
      std::memcpy(&value, integers.data + at * int64_t{sizeof(value)}, sizeof(value));
      if (missing == nullptr || missing->data[at] == 0) text += std::to_string(value);
      text += '\t';
    }
    for (int64_t c = 0; c < kCategories; ++c) {
      text.append(strings[static_cast<size_t>(row * kCategories + c)]);
      text += c + 1 < kCategories ? '\t' : '\n';
    }
  }
  starts.push_back(text.size());
  return text;
}

}  // namespace recsys::serve
