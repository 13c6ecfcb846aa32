// SPDX-License-Identifier: Apache-2.0
// Triton's functions, as far as loading and executions need them. For one source of a program.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dlrm/serve/csrc/triton_api.h"
#include "requests.h"

// An error without memory of its own, so that only the backend's allocations are counted.
struct TRITONSERVER_Error {
  char message[256];
};

struct TRITONSERVER_Message {
  std::string text;
};

struct TRITONBACKEND_Model {
  std::string repository;
  uint64_t version = 0;
  TRITONSERVER_Message config;
  void* state = nullptr;
};

struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model* model = nullptr;
  void* state = nullptr;
};

struct TRITONBACKEND_Input {
  Tensor tensor;
  TRITONSERVER_DataType type;
};

struct TRITONBACKEND_Output {
  std::vector<float> values = std::vector<float>(kMostRows);
};

struct TRITONBACKEND_Response {
  TRITONBACKEND_Output logit;
  int64_t rows = 0;
  bool is_sent = false;
  bool is_good = false;
};

struct TRITONBACKEND_Request {
  std::vector<TRITONBACKEND_Input> inputs;
  TRITONBACKEND_Response response;
  bool is_released = false;
};

extern "C" {

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code, const char* message) {
  auto* const error = static_cast<TRITONSERVER_Error*>(std::malloc(sizeof(TRITONSERVER_Error)));
  std::snprintf(error->message, sizeof(error->message), "%s", message);
  return error;
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error) { std::free(error); }
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error) { return error->message; }
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message,
                                                        const char** text, size_t* size) {
  *text = message->text.data();
  *size = message->text.size();
  return nullptr;
}
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message*) { return nullptr; }

TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t,
                                              TRITONSERVER_Message** message) {
  *message = &model->config;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model,
                                                  TRITONBACKEND_ArtifactType*,
                                                  const char** folder) {
  *folder = model->repository.c_str();
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model* model, uint64_t* version) {
  *version = model->version;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model* model, void** state) {
  *state = model->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
  model->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance* instance,
                                                     TRITONBACKEND_Model** model) {
  *model = instance->model;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance* instance,
                                                     void** state) {
  *state = instance->state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance,
                                                        void* state) {
  instance->state = state;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance*,
                                                                TRITONBACKEND_Request*, bool,
                                                                uint64_t, uint64_t, uint64_t,
                                                                uint64_t) {
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance*,
                                                                     uint64_t, uint64_t, uint64_t,
                                                                     uint64_t, uint64_t) {
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request,
                                                    uint32_t* count) {
  *count = static_cast<uint32_t>(request->inputs.size());
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request,
                                                      uint32_t index, TRITONBACKEND_Input** input) {
  *input = &request->inputs[index];
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_InputProperties(TRITONBACKEND_Input* input, const char** name,
                                                  TRITONSERVER_DataType* type,
                                                  const int64_t** shape, uint32_t* dimensions,
                                                  uint64_t* bytes, uint32_t* buffers) {
  *name = input->tensor.name.c_str();
  *type = input->type;
  *shape = input->tensor.shape.data();
  *dimensions = 2;
  *bytes = input->tensor.data.size();
  *buffers = 2;
  return nullptr;
}
// Two halves, so that the backend joins them.
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index,
                                              const void** buffer, uint64_t* bytes,
                                              TRITONSERVER_MemoryType* memory, int64_t*) {
  const size_t whole = input->tensor.data.size();
  *buffer = input->tensor.data.data() + (index == 0 ? 0 : whole / 2);
  *bytes = index == 0 ? whole / 2 : whole - whole / 2;
  *memory = kTritonCpu;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request*, uint32_t* count) {
  *count = 1;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request*, uint32_t,
                                                    const char** name) {
  *name = "logit";
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t) {
  request->is_released = true;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response,
                                              TRITONBACKEND_Request* request) {
  *response = &request->response;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response* response,
                                                 TRITONBACKEND_Output** output, const char*,
                                                 TRITONSERVER_DataType, const int64_t* shape,
                                                 uint32_t) {
  response->rows = shape[0];
  *output = &response->logit;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output* output, void** buffer,
                                               uint64_t, TRITONSERVER_MemoryType* memory,
                                               int64_t*) {
  *buffer = output->values.data();
  *memory = kTritonCpu;
  return nullptr;
}
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t,
                                               TRITONSERVER_Error* error) {
  response->is_sent = true;
  response->is_good = error == nullptr;
  return nullptr;
}

}  // extern "C"
