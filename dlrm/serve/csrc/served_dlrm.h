// SPDX-License-Identifier: Apache-2.0
// A deployed DLRM: requests in, click probabilities out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "network.h"
#include "raw_rows.h"
#include "requests.h"
#include "thread_pool.h"

namespace recsys::serve {

// A version, loaded once for all its instances.
struct ServedVersion {
  // Throws std::runtime_error if the folder is not a version that the backend supports.
  explicit ServedVersion(const std::string& path)
      : folder(path), deployment(path), network(path, deployment) {}

  const std::string folder;
  const Deployment deployment;
  const Network network;
};

// Outputs of a batch.
struct Answers {
  std::vector<float> probability;  // [rows]
  std::vector<float> logit;        // [rows]
};

// Answers requests, one batch at a time.
class Instance {
 public:
  Instance(std::shared_ptr<const ServedVersion> version, int num_threads);

  // Checks a request and appends its features. Throws BadRequest if a value is wrong; then nothing
  // is appended.
  void add(const Request& request, Features& features);

  // Runs the network.
  Answers answer(const Features& features);

 private:
  void append(const Request& request, Features& features);

  std::shared_ptr<const ServedVersion> version_;
  std::unique_ptr<RawRows> raw_rows_;
  ThreadPool threads_;
  std::vector<NetworkScratch> scratch_;
};

// Throws BadRequest if an answer in rows [begin, begin + rows) is not a finite number.
void check_answers(const Answers& answers, int64_t begin, int64_t rows);

}  // namespace recsys::serve
