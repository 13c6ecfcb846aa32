// SPDX-License-Identifier: Apache-2.0
// cuBLASLt stores matrices by columns: a matrix with contiguous rows is its own transpose there. So
// d^T = b' x a^T is asked for, whose rows are the N columns of d: what the epilogues take bias and
// mask for.
#include "product.h"

#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "cublaslt.h"

namespace recsys {
namespace {

using namespace cublaslt;

DataType data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return cublaslt::kFloat16;
    case Dtype::kBFloat16:
      return cublaslt::kBFloat16;
    case Dtype::kFloat64:
      return cublaslt::kFloat64;
    default:
      return cublaslt::kFloat32;
  }
}

ComputeType compute_type(const ReluProductArguments& arguments) {
  if (arguments.dtype == Dtype::kFloat64) return kInFloat64;
  const bool is_float32 = arguments.dtype == Dtype::kFloat32;
  return is_float32 && arguments.allow_tf32 ? kInTf32 : kInFloat32;
}

// A descriptor that is destroyed with its owner.
template <typename Pointer, typename Destroy>
struct Owned {
  Pointer pointer = nullptr;
  Destroy destroy;
  ~Owned() {
    if (pointer != nullptr) destroy(pointer);
  }
};

template <typename Pointer>
using OwnedBy = Owned<Pointer, int (*)(Pointer)>;

using Key = std::tuple<int32_t, int32_t, bool, bool, int64_t, int64_t, int64_t>;

// What a product of some size takes: asked for once, since it costs tens of microseconds.
class Algorithms {
 public:
  template <typename Find>
  std::optional<Algorithm> get(const Key& key, const Find& find) {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    return known_[key] = find();
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::optional<Algorithm>> known_;
};

Handle handle_of(const Functions& lt, int32_t device) {
  static std::mutex mutex;
  static std::map<int32_t, Handle> handles;
  const std::lock_guard lock(mutex);
  Handle& handle = handles[device];
  if (handle == nullptr && lt.create(&handle) != 0) handle = nullptr;
  return handle;
}

}  // namespace

int64_t relu_mask_bytes(int64_t columns) {
  return (columns + kMaskMultiple - 1) / kMaskMultiple * (kMaskMultiple / 8);
}

bool has_relu_products() { return functions() != nullptr; }

ProductStatus multiply_with_relu(const ReluProductArguments& arguments, void* stream) {
  const Functions& lt = *functions();
  const Handle handle = handle_of(lt, arguments.device);
  if (handle == nullptr) return ProductStatus::kFailed;
  const DataType type = data_type(arguments.dtype);
  const bool is_double = arguments.dtype == Dtype::kFloat64;
  const int64_t rows = arguments.rows, columns = arguments.columns, inner = arguments.inner;

  OwnedBy<Description> description{nullptr, lt.destroy_description};
  OwnedBy<Layout> left{nullptr, lt.destroy_layout};
  OwnedBy<Layout> right{nullptr, lt.destroy_layout};
  OwnedBy<Layout> result{nullptr, lt.destroy_layout};
  const int64_t stride_of_b = arguments.backward ? columns : inner;
  bool fine = lt.create_description(&description.pointer, compute_type(arguments),
                                    is_double ? cublaslt::kFloat64 : cublaslt::kFloat32) == 0 &&
              lt.create_layout(&left.pointer, type, arguments.backward ? columns : inner,
                               arguments.backward ? inner : columns, stride_of_b) == 0 &&
              lt.create_layout(&right.pointer, type, inner, rows, inner) == 0 &&
              lt.create_layout(&result.pointer, type, columns, rows, columns) == 0;
  const auto set = [&](Attribute attribute, const auto& value) {
    fine = fine && lt.set_attribute(description.pointer, attribute, &value, sizeof(value)) == 0;
  };
  const int32_t transpose = arguments.backward ? kAsItIs : kTransposed;
  const int32_t epilogue = arguments.backward ? kMaskBiasGradient : kReluMaskBias;
  const int64_t mask_stride = arguments.mask_bytes * 8;
  set(kTransposeA, transpose);
  set(kEpilogue, epilogue);
  set(kBiasPointer, arguments.bias);
  set(kMaskPointer, arguments.mask);
  set(kMaskStride, mask_stride);
  if (!fine) return ProductStatus::kFailed;

  static Algorithms algorithms;
  const Key key{arguments.device,
                static_cast<int32_t>(type),
                arguments.allow_tf32,
                arguments.backward,
                rows,
                columns,
                inner};
  const std::optional<Algorithm> algorithm = algorithms.get(key, [&]() -> std::optional<Algorithm> {
    OwnedBy<Preference> preference{nullptr, lt.destroy_preference};
    const auto bytes = static_cast<uint64_t>(arguments.workspace_bytes);
    Heuristic found{};
    int count = 0;
    if (lt.create_preference(&preference.pointer) != 0 ||
        lt.set_preference(preference.pointer, kMaxWorkspaceBytes, &bytes, sizeof(bytes)) != 0 ||
        lt.find_algorithm(handle, description.pointer, left.pointer, right.pointer, result.pointer,
                          result.pointer, preference.pointer, 1, &found, &count) != 0 ||
        count == 0 || found.status != 0) {
      return std::nullopt;
    }
    return found.algorithm;
  });
  if (!algorithm) return ProductStatus::kNoAlgorithm;
  const float one = 1.0f, zero = 0.0f;
  const double one_exact = 1.0, zero_exact = 0.0;
  const void* const alpha = is_double ? static_cast<const void*>(&one_exact) : &one;
  const void* const beta = is_double ? static_cast<const void*>(&zero_exact) : &zero;
  const int status = lt.multiply(handle, description.pointer, alpha, arguments.b, left.pointer,
                                 arguments.a, right.pointer, beta, arguments.d, result.pointer,
                                 arguments.d, result.pointer, &*algorithm, arguments.workspace,
                                 static_cast<size_t>(arguments.workspace_bytes), stream);
  return status == 0 ? ProductStatus::kDone : ProductStatus::kFailed;
}

}  // namespace recsys
