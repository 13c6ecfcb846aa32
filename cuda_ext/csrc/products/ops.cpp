// SPDX-License-Identifier: Apache-2.0
// torch op of a product with a transposed matrix of many rows, on the CPU.
#ifndef RECSYS_EMULATOR
#include "../block_sums.h"
#include "../registration.h"
#include "../tensor_arguments.h"
#include "kernels.h"

namespace recsys {
namespace {

constexpr const char* kOp = "transposed_product";

// Columns that a kernel reads as whole vectors, the narrowest of 32 bytes.
constexpr int64_t kVectorBytes = 32;

Tensor transposed_product(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), kOp,
                  ": a must be [K, M] and b [K, N]");
  STD_TORCH_CHECK(a.scalar_type() == b.scalar_type(), kOp, ": a and b must have the same type");
  STD_TORCH_CHECK((a.stride(1) == 1 || a.size(1) == 1) && (b.stride(1) == 1 || b.size(1) == 1), kOp,
                  ": rows of a and b must be contiguous");
  TransposedProductArguments arguments{};
  arguments.dtype = dtype_of(a, kOp, "a");
  STD_TORCH_CHECK(arguments.dtype == Dtype::kFloat32 || arguments.dtype == Dtype::kFloat64, kOp,
                  ": a and b must be float32 or float64");
  arguments.num_rows = a.size(0);
  arguments.rows = a.size(1);
  arguments.columns = b.size(1);
  STD_TORCH_CHECK(arguments.columns * bytes_of(arguments.dtype) % kVectorBytes == 0, kOp,
                  ": the columns of b must fill whole vectors of ", kVectorBytes, " bytes");
  arguments.a = a.data_ptr();
  arguments.a_stride = a.stride(0);
  arguments.b = b.data_ptr();
  arguments.b_stride = b.stride(0);
  const int64_t num_blocks = (arguments.num_rows + kProductRows - 1) / kProductRows;
  Tensor blocks = torch::stable::new_empty(a, {num_blocks, arguments.rows, arguments.columns});
  Tensor total = torch::stable::new_empty(a, {arguments.rows, arguments.columns});
  arguments.blocks = blocks.data_ptr();
  cpu::run_transposed_product(arguments);
  add_blocks(blocks, total);
  return total;
}

}  // namespace
}  // namespace recsys

RECSYS_SCHEMAS(library) { library.def("transposed_product(Tensor a, Tensor b) -> Tensor"); }

RECSYS_EXPAND(STABLE_TORCH_LIBRARY_IMPL, RECSYS_NAMESPACE, CPU, library) {
  library.impl("transposed_product", TORCH_BOX(&recsys::transposed_product));
}
#endif  // RECSYS_EMULATOR
