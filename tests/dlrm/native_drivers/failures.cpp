// SPDX-License-Identifier: Apache-2.0
// Lets each allocation of the native backend fail in turn, in the place of the server.
//
// native_failures VERSION   prints the loads that failed, the executions of which one request
//                           failed, and those of which all did
//
// VERSION takes raw rows.

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "requests.h"
#include "server.h"

namespace {

std::atomic<int64_t> allocations_left{-1};  // until one fails; negative: none does

}  // namespace

void* operator new(size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model*);
TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance*,
                                                       TRITONBACKEND_Request**, uint32_t);

}  // extern "C"

namespace {

void require(bool condition, const char* what, int64_t allocation) {
  if (condition) return;
  std::fprintf(stderr, "with allocation %lld failing: %s\n", static_cast<long long>(allocation),
               what);
  std::exit(1);
}

// Calls body while the given allocation fails, from 0; returns whether it came to that.
template <typename Body>
bool fail(int64_t allocation, const Body& body) {
  allocations_left = allocation;
  body();
  return allocations_left.exchange(-1) < 0;
}

// Frees an error; returns whether there is one.
bool drop(TRITONSERVER_Error* error) {
  std::free(error);
  return error != nullptr;
}

// Returns whether model and instance are loaded; else neither is.
bool load(TRITONBACKEND_Model& model, TRITONBACKEND_ModelInstance& instance) {
  if (drop(TRITONBACKEND_ModelInitialize(&model))) return false;
  if (!drop(TRITONBACKEND_ModelInstanceInitialize(&instance))) return true;
  drop(TRITONBACKEND_ModelFinalize(&model));
  return false;
}

void unload(TRITONBACKEND_Model& model, TRITONBACKEND_ModelInstance& instance) {
  drop(TRITONBACKEND_ModelInstanceFinalize(&instance));
  drop(TRITONBACKEND_ModelFinalize(&model));
}

TRITONBACKEND_Request request_of(const std::vector<Tensor>& tensors) {
  TRITONBACKEND_Request request;
  for (const Tensor& tensor : tensors) {
    const TRITONSERVER_DataType type = tensor.dtype == "float32" ? kTritonFloat32
                                       : tensor.dtype == "int64" ? kTritonInt64
                                       : tensor.dtype == "bool"  ? kTritonBool
                                                                 : kTritonBytes;
    request.inputs.push_back({tensor, type});
  }
  return request;
}

std::vector<TRITONBACKEND_Request> requests_of_every_form() {
  std::mt19937 random(29);
  std::vector<TRITONBACKEND_Request> requests;
  for (const int64_t rows : {5, 2}) {
    requests.push_back(request_of(features(rows, random)));
    requests.push_back(request_of(lines(rows + 1, random)));
    requests.push_back(request_of(fields(rows + 2, random)));
  }
  return requests;
}

struct Counts {
  int loads = 0;
  int alone = 0;
  int all = 0;
};

// Each allocation of loading: an error, and nothing is left behind.
void fail_loads(TRITONBACKEND_Model& model, TRITONBACKEND_ModelInstance& instance, Counts& counts) {
  bool is_loaded = false;
  while (fail(counts.loads, [&] { is_loaded = load(model, instance); })) {
    require(!is_loaded, "the version loaded", counts.loads);
    ++counts.loads;
  }
  require(is_loaded, "the version did not load", -1);
}

// Each allocation of an execution: the request that needs it, or all, get errors; answers stay.
void fail_executions(TRITONBACKEND_ModelInstance& instance, Counts& counts) {
  std::vector<TRITONBACKEND_Request> requests = requests_of_every_form();
  std::vector<std::vector<float>> expected;
  std::vector<TRITONBACKEND_Request*> given;
  for (TRITONBACKEND_Request& request : requests) given.push_back(&request);
  const auto count = static_cast<uint32_t>(given.size());
  const auto execute = [&] {
    for (TRITONBACKEND_Request& request : requests) {
      request.is_released = request.response.is_sent = request.response.is_good = false;
    }
    return !drop(TRITONBACKEND_ModelInstanceExecute(&instance, given.data(), count));
  };
  require(execute(), "no answers", -1);
  for (const TRITONBACKEND_Request& request : requests) {
    require(request.response.is_good, "a good request is refused", -1);
    expected.push_back(request.response.logit.values);
  }
  bool is_answered = false;
  for (int64_t allocation = 0; fail(allocation, [&] { is_answered = execute(); }); ++allocation) {
    uint32_t errors = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const TRITONBACKEND_Response& response = requests[i].response;
      require(requests[i].is_released == is_answered, "a request is held or lost", allocation);
      require(response.is_sent == is_answered, "a response is missing", allocation);
      if (!response.is_good) ++errors;
      for (int64_t row = 0; response.is_good && row < response.rows; ++row) {
        const auto at = static_cast<size_t>(row);
        require(std::abs(response.logit.values[at] - expected[i][at]) < 1e-5F,
                "the answer to another request changed", allocation);
      }
    }
    require(errors == 1 || errors == count, "other requests failed too", allocation);
    ++(errors == 1 ? counts.alone : counts.all);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::filesystem::path version = argv[1];
  Counts counts;
  for (const char* const threads : {"1", "3"}) {
    TRITONBACKEND_Model model;
    model.repository = version.parent_path();
    model.version = std::stoull(version.filename());
    model.config.text = std::string(R"({"parameters": {"threads": {"string_value": ")") + threads +
                        R"("}, "warmup_rows": {"string_value": "40"}}})";
    TRITONBACKEND_ModelInstance instance{&model};
    counts.loads = 0;
    fail_loads(model, instance, counts);
    fail_executions(instance, counts);
    unload(model, instance);
  }
  std::printf("%d loads, %d executions of one request, %d of all failed\n", counts.loads,
              counts.alone, counts.all);
  return 0;
}
