// SPDX-License-Identifier: Apache-2.0
// The part of Triton's backend interface that this backend uses; the server has no header files.
//
// Names, numbers and arguments are those of version 1 of the interface, which only grows. The
// functions are weak symbols: the server defines them. If the library is opened without a server,
// they are null and never called.
#pragma once

#include <cstdint>

#define TRITON_FUNCTION __attribute__((visibility("default"), weak))
#define TRITON_ENTRY __attribute__((visibility("default")))

extern "C" {

struct TRITONBACKEND_Backend;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Output;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONSERVER_Error;
struct TRITONSERVER_Message;

enum TRITONSERVER_Error_Code { kTritonInternal = 1, kTritonInvalidArgument = 3 };
enum TRITONSERVER_DataType {
  kTritonBool = 1,
  kTritonInt64 = 9,
  kTritonFloat32 = 11,
  kTritonBytes = 13,
};
enum TRITONSERVER_MemoryType { kTritonCpu = 0, kTritonGpu = 2 };
enum TRITONBACKEND_ArtifactType { kTritonFilesystem = 0 };

constexpr uint32_t kTritonReleaseAll = 1;
constexpr uint32_t kTritonFinalResponse = 1;
constexpr uint32_t kTritonApiMajor = 1;

TRITON_FUNCTION TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code, const char*);
TRITON_FUNCTION void TRITONSERVER_ErrorDelete(TRITONSERVER_Error*);
TRITON_FUNCTION const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message*,
                                                                        const char** text,
                                                                        size_t* size);
TRITON_FUNCTION TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message*);

TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model*,
                                                              uint32_t config_version,
                                                              TRITONSERVER_Message**);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model*,
                                                                  TRITONBACKEND_ArtifactType*,
                                                                  const char** folder);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model*, uint64_t*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model*, void**);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model*, void*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance*,
                                                                     TRITONBACKEND_Model**);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance*,
                                                                     void**);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelInstanceSetState(
    TRITONBACKEND_ModelInstance*, void*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request*, bool success, uint64_t start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t end_ns);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance*, uint64_t rows, uint64_t start_ns, uint64_t compute_start_ns,
    uint64_t compute_end_ns, uint64_t end_ns);

TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request*,
                                                                    uint32_t*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request*,
                                                                      uint32_t index,
                                                                      TRITONBACKEND_Input**);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input*, const char** name, TRITONSERVER_DataType*, const int64_t** shape,
    uint32_t* dimensions, uint64_t* bytes, uint32_t* buffers);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input*, uint32_t index,
                                                              const void** buffer, uint64_t* bytes,
                                                              TRITONSERVER_MemoryType*,
                                                              int64_t* memory_id);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request*,
                                                                     uint32_t*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request*,
                                                                    uint32_t index,
                                                                    const char** name);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request*,
                                                                 uint32_t flags);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response**,
                                                              TRITONBACKEND_Request*);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response*, TRITONBACKEND_Output**, const char* name, TRITONSERVER_DataType,
    const int64_t* shape, uint32_t dimensions);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output*, void** buffer,
                                                               uint64_t bytes,
                                                               TRITONSERVER_MemoryType*,
                                                               int64_t* memory_id);
TRITON_FUNCTION TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response*,
                                                               uint32_t flags, TRITONSERVER_Error*);

}  // extern "C"
