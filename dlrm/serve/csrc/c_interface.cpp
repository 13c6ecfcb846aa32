// SPDX-License-Identifier: Apache-2.0
// C interface for dlrm/serve/native.py: answers requests like the backend, without a server.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "served_dlrm.h"

#define RECSYS_API extern "C" __attribute__((visibility("default")))

namespace {

using recsys::serve::Answers;
using recsys::serve::BadRequest;
using recsys::serve::Features;
using recsys::serve::Instance;
using recsys::serve::Request;
using recsys::serve::ServedVersion;

enum Status : int { kOk = 0, kBadRequest = 1, kFailed = 2 };

thread_local std::string last_message;

template <typename Body>
int guarded(const Body& body) {
  try {
    body();
    return kOk;
  } catch (const BadRequest& error) {
    last_message = error.what();
    return kBadRequest;
  } catch (const std::exception& error) {
    last_message = error.what();
    return kFailed;
  }
}

}  // namespace

// A tensor of a request.
struct RecsysTensor {
  const char* name;
  const char* dtype;
  const int64_t* shape;
  int64_t dimensions;
  const uint8_t* data;
  uint64_t bytes;
};

// Describes the last error of this thread.
RECSYS_API const char* recsys_last_error() { return last_message.c_str(); }

RECSYS_API const char* recsys_instruction_set() { return recsys::serve::kernels().name; }

// Returns null if the version cannot be opened.
RECSYS_API Instance* recsys_open(const char* folder, int num_threads) {
  Instance* instance = nullptr;
  guarded(
      [&] { instance = new Instance(std::make_shared<const ServedVersion>(folder), num_threads); });
  return instance;
}

RECSYS_API void recsys_close(Instance* instance) { delete instance; }

// Checks and answers a request. Outputs have room for `capacity` rows; it writes `num_rows`.
RECSYS_API int recsys_respond(Instance* instance, const RecsysTensor* tensors, int64_t count,
                              int64_t capacity, float* probability, float* logit,
                              int64_t* num_rows) {
  return guarded([&] {
    Request request;
    for (int64_t i = 0; i < count; ++i) {
      const RecsysTensor& tensor = tensors[i];
      request.push_back({tensor.name,
                         tensor.dtype,
                         {tensor.shape, tensor.shape + tensor.dimensions},
                         tensor.data,
                         tensor.bytes});
    }
    Features features;
    instance->add(request, features);
    const Answers answers = instance->answer(features);
    check_answers(answers, 0, features.rows);
    *num_rows = std::min(features.rows, capacity);
    std::copy_n(answers.probability.begin(), *num_rows, probability);
    std::copy_n(answers.logit.begin(), *num_rows, logit);
  });
}
