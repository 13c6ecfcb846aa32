// SPDX-License-Identifier: Apache-2.0
// torch op of a product with a transposed matrix of many rows, on the CPU.
#include "../block_sums.h"
#include "../registration.h"
#include "../tensor_arguments.h"
#include "transposed_product_arguments.h"

namespace recsys {
namespace {

constexpr const char* kOp = "transposed_product";

// Columns that fill the narrowest vector of a kernel, 32 bytes.
constexpr int64_t kVectorColumns = 8;

Tensor transposed_product(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), kOp,
                  ": a must be [K, M] and b [K, N]");
  STD_TORCH_CHECK(a.scalar_type() == ScalarType::Float && b.scalar_type() == ScalarType::Float, kOp,
                  ": a and b must be float32");
  STD_TORCH_CHECK((a.stride(1) == 1 || a.size(1) == 1) && (b.stride(1) == 1 || b.size(1) == 1), kOp,
                  ": rows of a and b must be contiguous");
  TransposedProductArguments arguments{};
  arguments.num_rows = a.size(0);
  arguments.rows = a.size(1);
  arguments.columns = b.size(1);
  STD_TORCH_CHECK(arguments.columns % kVectorColumns == 0, kOp,
                  ": the columns of b must be a multiple of ", kVectorColumns);
  arguments.a = static_cast<const float*>(a.data_ptr());
  arguments.a_stride = a.stride(0);
  arguments.b = static_cast<const float*>(b.data_ptr());
  arguments.b_stride = b.stride(0);
  const int64_t num_blocks = (arguments.num_rows + kProductRows - 1) / kProductRows;
  Tensor blocks = torch::stable::new_empty(a, {num_blocks, arguments.rows, arguments.columns});
  Tensor total = torch::stable::new_empty(a, {arguments.rows, arguments.columns});
  arguments.blocks = static_cast<float*>(blocks.data_ptr());
  cpu::run_transposed_product(arguments);
  add_blocks(blocks, total);
  return total;
}

}  // namespace
}  // namespace recsys

static const recsys::Op kOps[] = {
    {"transposed_product(Tensor a, Tensor b) -> Tensor", TORCH_BOX(&recsys::transposed_product)},
};

RECSYS_REGISTER_ON_CPU(kOps)
