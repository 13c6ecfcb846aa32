// SPDX-License-Identifier: Apache-2.0
// Reads raw rows of a request. The messages are those of recsys/serve/raw_rows.py and of
// preproc/clicks/serving/line_transform.py.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "network.h"
#include "requests.h"

namespace clicks {
class LineTransform;
}

namespace recsys::serve {

// Features of a request.
struct Features {
  int64_t rows = 0;
  std::vector<float> numerical;  // [rows, M]
  std::vector<int64_t> ids;      // [rows, slots]
  std::vector<float> scale;      // [rows, list slots]

  // Makes room for more rows, or drops the last ones.
  void resize(const Deployment& deployment, int64_t count);
};

// Transforms raw rows by the rules and dictionaries of a dataset. Not thread-safe.
class RawRows {
 public:
  // Throws std::runtime_error if the file is missing or damaged, or has other features.
  RawRows(const std::string& path, const Deployment& deployment);
  RawRows(const RawRows&) = delete;
  RawRows& operator=(const RawRows&) = delete;
  ~RawRows();

  // Returns whether a request has any input that is not a transformed feature.
  static bool has_raw(const Request& request);

  // Checks a request of lines or fields, and appends its features. If it throws, some features may
  // have been appended.
  void read(const Request& request, Features& features);

 private:
  std::string text_of_lines(const InputTensor& lines) const;
  std::string text_of_fields(const InputTensor& fields) const;

  std::unique_ptr<clicks::LineTransform> transform_;
  const Deployment& deployment_;
};

}  // namespace recsys::serve
