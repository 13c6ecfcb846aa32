// SPDX-License-Identifier: Apache-2.0
#include "raw_rows.h"

#include <algorithm>
#include <stdexcept>

#include "preproc/clicks/kernel/line_transform.h"

namespace recsys::serve {
namespace {

bool is_transformed(const InputTensor& tensor) {
  return tensor.name == "numerical" || tensor.name == "categorical" || tensor.name == "factors";
}

BadRequest refused(uint64_t row, const std::string& reason) {
  return BadRequest("row " + std::to_string(row) + ": " + reason);
}

}  // namespace

void Features::resize(const Deployment& deployment, int64_t count) {
  rows = count;
  numerical.resize(static_cast<size_t>(count * deployment.num_numerical));
  ids.resize(static_cast<size_t>(count * deployment.num_slots));
  scale.resize(static_cast<size_t>(count * deployment.num_list_slots));
}

RawRows::RawRows(const std::string& path, const Deployment& deployment) : deployment_(deployment) {
  try {
    transform_ = std::make_unique<clicks::LineTransform>(path);
    const std::vector<uint32_t>& widths = transform_->file().widths();
    if (transform_->num_numerical() != deployment.num_numerical ||
        transform_->num_list_slots() != deployment.num_list_slots ||
        !std::equal(widths.begin(), widths.end(), deployment.widths.begin(),
                    deployment.widths.end())) {
      throw std::runtime_error("has other features than the model");
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(path + ": " + error.what() + "; deploy the checkpoint again");
  }
}

RawRows::~RawRows() = default;

bool RawRows::has_raw(const Request& request) {
  return std::any_of(request.begin(), request.end(),
                     [](const InputTensor& tensor) { return !is_transformed(tensor); });
}

void RawRows::read(const Request& request, Features& features) {
  const InputTensor* const line = find_input(request, "line");
  const bool is_mixed = std::any_of(request.begin(), request.end(), [&](const InputTensor& tensor) {
    return is_transformed(tensor) || (line != nullptr && tensor.name != "line");
  });
  if (is_mixed) {
    std::vector<std::string> names;
    for (const InputTensor& tensor : request) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    throw BadRequest("got " + joined(names) + ": a request has 'line', or 'fields', or " +
                     (deployment_.num_numerical > 0 ? "'numerical'" : "") +
                     (deployment_.num_numerical > 0 && deployment_.num_slots > 0 ? " and " : "") +
                     (deployment_.num_slots > 0 ? "'categorical'" : "") +
                     (deployment_.num_list_slots > 0 ? " and 'factors'" : ""));
  }
  const int64_t num_fields = transform_->num_features();
  check_tensors({line != nullptr ? ExpectedTensor{"line", "string", 1}
                                 : ExpectedTensor{"fields", "string", num_fields}},
                request);
  const std::string text = line != nullptr ? text_of_lines(*line) : text_of_fields(request[0]);
  const int64_t rows = request[0].rows(), before = features.rows;
  features.resize(deployment_, before + rows);
  try {
    clicks::RejectedLine rejected{};
    const auto form = line != nullptr ? clicks::RowForm::kLine : clicks::RowForm::kFields;
    if (!transform_->run(form, reinterpret_cast<const uint8_t*>(text.data()), text.size(),
                         static_cast<uint64_t>(rows),
                         features.numerical.data() + before * deployment_.num_numerical,
                         features.ids.data() + before * deployment_.num_slots,
                         features.scale.data() + before * deployment_.num_list_slots, &rejected)) {
      throw refused(rejected.line, rejected.message);
    }
  } catch (const clicks::LineTooLong& error) {
    const auto row =
        std::count(text.begin(), text.begin() + static_cast<int64_t>(error.offset), '\n');
    throw refused(static_cast<uint64_t>(row), "is longer than any row");
  }
}

std::string RawRows::text_of_lines(const InputTensor& lines) const {
  std::string text;
  uint64_t row = 0;
  for (std::string_view line : read_strings(lines)) {
    if (!line.empty() && line.back() == '\n') line.remove_suffix(1);
    if (line.find('\n') != std::string_view::npos) {
      throw refused(row, "contains a line feed; send one line per row");
    }
    text.append(line);
    text += '\n';
    ++row;
  }
  return text;
}

std::string RawRows::text_of_fields(const InputTensor& fields) const {
  const auto columns = static_cast<size_t>(fields.shape[1]);
  std::string text;
  size_t at = 0;
  for (const std::string_view field : read_strings(fields)) {
    clicks::append_cell(field, text);
    text += ++at % columns != 0 ? '\t' : '\n';
  }
  return text;
}

}  // namespace recsys::serve
