// SPDX-License-Identifier: Apache-2.0
// Entry points of a Triton backend: model, instances, and the requests of an execution.
//
// The interface passes states as void pointers. Instances share a version and keep it alive.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "json.h"
#include "served_dlrm.h"
#include "triton_api.h"

namespace recsys::serve {
namespace {

// The server refused a call.
struct ServerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  throw ServerError(message);
}

void ignore(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

// Calls body; returns an exception as an error of the server.
template <typename Body>
TRITONSERVER_Error* guarded(const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(kTritonInternal, error.what());
  }
}

uint64_t now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Returns a parameter of config.pbtxt that is a number; 0 if it is missing.
int parameter(const Json& config, const char* name) {
  const Json* const parameters = config.find("parameters");
  const Json* const value = parameters == nullptr ? nullptr : parameters->find(name);
  if (value == nullptr) return 0;
  return std::atoi(value->at("string_value").string().c_str());
}

// A loaded model: its version and its settings.
struct Model {
  std::shared_ptr<const ServedVersion> version;
  int num_threads = 1;
  int warmup_rows = 0;

  explicit Model(TRITONBACKEND_Model* model) {
    TRITONBACKEND_ArtifactType type = kTritonFilesystem;
    const char* repository = nullptr;
    uint64_t number = 0;
    check(TRITONBACKEND_ModelRepository(model, &type, &repository));
    check(TRITONBACKEND_ModelVersion(model, &number));
    read_settings(model);
    version = std::make_shared<const ServedVersion>(std::string(repository) + "/" +
                                                    std::to_string(number));
  }

 private:
  void read_settings(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message = nullptr;
    check(TRITONBACKEND_ModelConfig(model, 1, &message));
    const char* text = nullptr;
    size_t size = 0;
    check(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
    const Json config = Json::parse({text, size});
    ignore(TRITONSERVER_MessageDelete(message));
    num_threads = parameter(config, "threads");
    if (num_threads < 1) {  // use the share of cores with which the server was started
      const char* const threads = std::getenv("OMP_NUM_THREADS");
      num_threads = threads == nullptr ? 1 : std::max(std::atoi(threads), 1);
    }
    warmup_rows = parameter(config, "warmup_rows");
  }
};

std::string dtype_of(TRITONSERVER_DataType type) {
  switch (type) {
    case kTritonBool:
      return "bool";
    case kTritonInt64:
      return "int64";
    case kTritonFloat32:
      return "float32";
    case kTritonBytes:
      return "object";
  }
  return "another type";
}

// Returns the inputs of a request; inputs in several buffers are joined in `joined`.
Request read_request(TRITONBACKEND_Request* request, std::vector<std::vector<uint8_t>>& joined) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestInputCount(request, &count));
  Request tensors;
  for (uint32_t i = 0; i < count; ++i) {
    TRITONBACKEND_Input* input = nullptr;
    const char* name = nullptr;
    TRITONSERVER_DataType type{};
    const int64_t* shape = nullptr;
    uint32_t dimensions = 0;
    uint64_t bytes = 0;
    uint32_t buffers = 0;
    check(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    check(
        TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dimensions, &bytes, &buffers));
    InputTensor tensor{name, dtype_of(type), {shape, shape + dimensions}, nullptr, bytes};
    std::vector<uint8_t> whole;
    for (uint32_t b = 0; b < buffers; ++b) {
      const void* data = nullptr;
      uint64_t size = 0;
      TRITONSERVER_MemoryType memory = kTritonCpu;
      int64_t memory_id = 0;
      check(TRITONBACKEND_InputBuffer(input, b, &data, &size, &memory, &memory_id));
      if (memory == kTritonGpu) throw ServerError("an input is in the memory of a GPU");
      const auto* const begin = static_cast<const uint8_t*>(data);
      if (buffers == 1) {
        tensor.data = begin;
        tensor.bytes = size;
      } else if (size > 0) {
        whole.insert(whole.end(), begin, begin + size);
      }
    }
    if (buffers != 1) {
      joined.push_back(std::move(whole));
      tensor.data = joined.back().data();
      tensor.bytes = joined.back().size();
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// A request of an execution that is not answered yet.
struct Pending {
  TRITONBACKEND_Request* request;
  TRITONBACKEND_Response* response = nullptr;
  int64_t begin = 0;  // first of its rows in the batch
  int64_t rows = 0;
  TRITONSERVER_Error* error = nullptr;
};

void refuse(Pending& pending, TRITONSERVER_Error_Code code, const char* message) {
  pending.error = TRITONSERVER_ErrorNew(code, message);
}

void write_output(TRITONBACKEND_Response* response, const char* name, const float* values,
                  int64_t rows) {
  const int64_t shape[] = {rows, 1};
  TRITONBACKEND_Output* output = nullptr;
  check(TRITONBACKEND_ResponseOutput(response, &output, name, kTritonFloat32, shape, 2));
  void* buffer = nullptr;
  const uint64_t bytes = static_cast<uint64_t>(rows) * sizeof(float);
  TRITONSERVER_MemoryType memory = kTritonCpu;
  int64_t memory_id = 0;
  check(TRITONBACKEND_OutputBuffer(output, &buffer, bytes, &memory, &memory_id));
  if (memory == kTritonGpu) throw ServerError("an output is requested in the memory of a GPU");
  std::memcpy(buffer, values, bytes);
}

// Writes the outputs that a request asks for.
void write_outputs(const Pending& pending, const Answers& answers) {
  uint32_t count = 0;
  check(TRITONBACKEND_RequestOutputCount(pending.request, &count));
  for (uint32_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    check(TRITONBACKEND_RequestOutputName(pending.request, i, &name));
    const bool is_logit = std::strcmp(name, "logit") == 0;
    const std::vector<float>& values = is_logit ? answers.logit : answers.probability;
    write_output(pending.response, name, values.data() + pending.begin, pending.rows);
  }
}

// Runs body for a request without an error; an exception becomes its error.
template <typename Body>
void attempt(Pending& pending, const Body& body) {
  if (pending.error != nullptr) return;
  try {
    body();
  } catch (const BadRequest& error) {
    refuse(pending, kTritonInvalidArgument, error.what());
  } catch (const std::exception& error) {
    refuse(pending, kTritonInternal, error.what());
  }
}

// Answers all requests of an execution as one batch. Bad requests get errors, the others answers.
void execute(TRITONBACKEND_ModelInstance* triton_instance, Instance& instance,
             TRITONBACKEND_Request** requests, uint32_t count) {
  const uint64_t start_ns = now_ns();
  std::vector<Pending> all;
  all.reserve(count);
  Features features;
  for (uint32_t i = 0; i < count; ++i) {
    all.push_back({requests[i]});
    Pending& pending = all.back();
    ignore(TRITONBACKEND_ResponseNew(&pending.response, pending.request));
    attempt(pending, [&] {
      std::vector<std::vector<uint8_t>> joined;
      pending.begin = features.rows;
      instance.add(read_request(pending.request, joined), features);
      pending.rows = features.rows - pending.begin;
    });
  }
  const uint64_t compute_start_ns = now_ns();
  Answers answers;
  try {
    answers = instance.answer(features);
  } catch (const std::exception& error) {  // not stored: GCC 8 lacks GCC 12's std::exception_ptr
    for (Pending& pending : all) {
      if (pending.error == nullptr) refuse(pending, kTritonInternal, error.what());
    }
  }
  const uint64_t compute_end_ns = now_ns();
  for (Pending& pending : all) {
    attempt(pending, [&] {
      check_answers(answers, pending.begin, pending.rows);
      if (pending.response != nullptr) write_outputs(pending, answers);
    });
  }
  uint64_t end_ns = now_ns();
  for (Pending& pending : all) {
    const bool is_good = pending.error == nullptr;
    if (pending.response != nullptr) {
      ignore(TRITONBACKEND_ResponseSend(pending.response, kTritonFinalResponse, pending.error));
    }
    ignore(pending.error);
    end_ns = now_ns();
    ignore(TRITONBACKEND_ModelInstanceReportStatistics(triton_instance, pending.request, is_good,
                                                       start_ns, compute_start_ns, compute_end_ns,
                                                       end_ns));
  }
  if (features.rows > 0) {
    ignore(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        triton_instance, static_cast<uint64_t>(features.rows), start_ns, compute_start_ns,
        compute_end_ns, end_ns));
  }
  for (const Pending& pending : all) {
    ignore(TRITONBACKEND_RequestRelease(pending.request, kTritonReleaseAll));
  }
}

}  // namespace
}  // namespace recsys::serve

using recsys::serve::check;
using recsys::serve::Features;
using recsys::serve::guarded;
using recsys::serve::Instance;
using recsys::serve::Model;

extern "C" {

TRITON_ENTRY TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) {
  return guarded([] {
    uint32_t major = 0;
    uint32_t minor = 0;
    check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != kTritonApiMajor) {
      throw std::runtime_error("the server has version " + std::to_string(major) +
                               " of the backend interface, expected 1");
    }
  });
}

TRITON_ENTRY TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([model] {
    auto loaded = std::make_unique<Model>(model);
    check(TRITONBACKEND_ModelSetState(model, loaded.get()));
    loaded.release();
  });
}

TRITON_ENTRY TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return guarded([model] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelState(model, &state));
    delete static_cast<Model*>(state);
  });
}

TRITON_ENTRY TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(
    TRITONBACKEND_ModelInstance* triton_instance) {
  return guarded([triton_instance] {
    TRITONBACKEND_Model* triton_model = nullptr;
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(triton_instance, &triton_model));
    check(TRITONBACKEND_ModelState(triton_model, &state));
    const Model& model = *static_cast<Model*>(state);
    auto instance = std::make_unique<Instance>(model.version, model.num_threads);
    Features zeros;
    zeros.resize(model.version->deployment, model.warmup_rows);
    instance->answer(zeros);
    check(TRITONBACKEND_ModelInstanceSetState(triton_instance, instance.get()));
    instance.release();
  });
}

TRITON_ENTRY TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(
    TRITONBACKEND_ModelInstance* triton_instance) {
  return guarded([triton_instance] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(triton_instance, &state));
    delete static_cast<Instance*>(state);
  });
}

TRITON_ENTRY TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* triton_instance, TRITONBACKEND_Request** requests,
    uint32_t count) {
  return guarded([&] {
    void* state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(triton_instance, &state));
    recsys::serve::execute(triton_instance, *static_cast<Instance*>(state), requests, count);
  });
}

}  // extern "C"
