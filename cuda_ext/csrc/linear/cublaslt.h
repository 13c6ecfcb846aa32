// SPDX-License-Identifier: Apache-2.0
// The functions of cuBLASLt that the linear layers call, found when the library is loaded: a build
// needs neither its header nor its name, and a torch without CUDA loads what was built with it.
//
// Numbers are those of cublasLt.h, which does not change them; where it is there they are compared.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(RECSYS_CUDA) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define RECSYS_HAS_CUBLASLT_HEADER
#endif

namespace recsys::cublaslt {

using Handle = struct OpaqueHandle*;
using Description = struct OpaqueDescription*;
using Layout = struct OpaqueLayout*;
using Preference = struct OpaquePreference*;

enum DataType : int32_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 14 };
enum ComputeType : int32_t { kInFloat32 = 68, kInFloat64 = 70, kInTf32 = 77 };
enum Operation : int32_t { kAsItIs = 0, kTransposed = 1 };
enum Attribute : int32_t {
  kTransposeA = 3,
  kTransposeB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kMaskPointer = 11,
  kMaskStride = 12,
};
enum Epilogue : int32_t {
  kReluMaskBias = 134,     // D = relu(AB + bias), and a bit of each positive element
  kMaskBiasGradient = 152  // D = AB where the bit is set, else 0; bias = sums of D's rows
};
constexpr int32_t kMaxWorkspaceBytes = 1;  // a preference
constexpr int64_t kMaskMultiple = 128;     // of the bits of a column of D

struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int32_t status;
  float waves;
  int32_t reserved[4];
};

#ifdef RECSYS_HAS_CUBLASLT_HEADER
constexpr bool is_equal(int64_t theirs, int64_t ours) { return theirs == ours; }
static_assert(is_equal(CUDA_R_32F, kFloat32) && is_equal(CUDA_R_64F, kFloat64));
static_assert(is_equal(CUDA_R_16F, kFloat16) && is_equal(CUDA_R_16BF, kBFloat16));
static_assert(is_equal(CUBLAS_COMPUTE_32F, kInFloat32) && is_equal(CUBLAS_COMPUTE_64F, kInFloat64));
static_assert(is_equal(CUBLAS_COMPUTE_32F_FAST_TF32, kInTf32));
static_assert(is_equal(CUBLAS_OP_N, kAsItIs) && is_equal(CUBLAS_OP_T, kTransposed));
static_assert(is_equal(CUBLASLT_MATMUL_DESC_TRANSA, kTransposeA));
static_assert(is_equal(CUBLASLT_MATMUL_DESC_TRANSB, kTransposeB));
static_assert(is_equal(CUBLASLT_MATMUL_DESC_EPILOGUE, kEpilogue));
static_assert(is_equal(CUBLASLT_MATMUL_DESC_BIAS_POINTER, kBiasPointer));
static_assert(is_equal(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, kMaskPointer));
static_assert(is_equal(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, kMaskStride));
static_assert(is_equal(CUBLASLT_EPILOGUE_RELU_AUX_BIAS, kReluMaskBias));
static_assert(is_equal(CUBLASLT_EPILOGUE_DRELU_BGRAD, kMaskBiasGradient));
static_assert(is_equal(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspaceBytes));
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(Algorithm));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(Heuristic));
#endif

// Each returns a cublasStatus_t, 0 for success.
struct Functions {
  int (*create)(Handle*);
  int (*create_description)(Description*, int32_t compute_type, int32_t scale_type);
  int (*destroy_description)(Description);
  int (*set_attribute)(Description, int32_t attribute, const void* value, size_t bytes);
  int (*create_layout)(Layout*, int32_t type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*destroy_layout)(Layout);
  int (*create_preference)(Preference*);
  int (*destroy_preference)(Preference);
  int (*set_preference)(Preference, int32_t attribute, const void* value, size_t bytes);
  int (*find_algorithm)(Handle, Description, Layout a, Layout b, Layout c, Layout d, Preference,
                        int wanted, Heuristic*, int* found);
  int (*multiply)(Handle, Description, const void* alpha, const void* a, Layout, const void* b,
                  Layout, const void* beta, const void* c, Layout, void* d, Layout,
                  const Algorithm*, void* workspace, size_t workspace_bytes, void* stream);
};

// Returns the functions of the library that torch has loaded; null without.
const Functions* functions();

}  // namespace recsys::cublaslt
