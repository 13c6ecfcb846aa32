// SPDX-License-Identifier: Apache-2.0
// cuBLASLt for the emulator: the products that the linear layers ask for, on the CPU, and the rules
// of cublasLt.h for their arguments.
#include "../csrc/linear/cublaslt.h"

#include <cstring>
#include <vector>

#include "../csrc/cuda/intrinsics.cuh"

namespace recsys::cublaslt {

struct OpaqueHandle {};

struct OpaqueDescription {
  int32_t compute_type = 0;
  int32_t transpose_a = kAsItIs;
  int32_t transpose_b = kAsItIs;
  int32_t epilogue = 1;
  void* bias = nullptr;
  void* mask = nullptr;
  int64_t mask_stride = 0;
};

struct OpaqueLayout {
  int32_t type;
  uint64_t rows;
  uint64_t columns;
  int64_t stride;
};

struct OpaquePreference {
  uint64_t workspace_bytes = 0;
};

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 7;
constexpr int kNotSupported = 15;

int create(Handle* handle) {
  static OpaqueHandle only;
  *handle = &only;
  return kSuccess;
}

int create_description(Description* description, int32_t compute_type, int32_t scale_type) {
  const bool is_double = compute_type == kInFloat64;
  if (scale_type != (is_double ? kFloat64 : kFloat32)) return kInvalidValue;
  *description = new OpaqueDescription{compute_type};
  return kSuccess;
}

int destroy_description(Description description) {
  delete description;
  return kSuccess;
}

int set_attribute(Description description, int32_t attribute, const void* value, size_t bytes) {
  const auto copy = [&](auto& to) {
    if (bytes != sizeof(to)) return kInvalidValue;
    std::memcpy(&to, value, bytes);
    return kSuccess;
  };
  switch (attribute) {
    case kTransposeA:
      return copy(description->transpose_a);
    case kTransposeB:
      return copy(description->transpose_b);
    case kEpilogue:
      return copy(description->epilogue);
    case kBiasPointer:
      return copy(description->bias);
    case kMaskPointer:
      return copy(description->mask);
    case kMaskStride:
      return copy(description->mask_stride);
    default:
      return kInvalidValue;
  }
}

int create_layout(Layout* layout, int32_t type, uint64_t rows, uint64_t columns, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return kInvalidValue;
  *layout = new OpaqueLayout{type, rows, columns, stride};
  return kSuccess;
}

int destroy_layout(Layout layout) {
  delete layout;
  return kSuccess;
}

int create_preference(Preference* preference) {
  *preference = new OpaquePreference;
  return kSuccess;
}

int destroy_preference(Preference preference) {
  delete preference;
  return kSuccess;
}

int set_preference(Preference preference, int32_t attribute, const void* value, size_t bytes) {
  if (attribute != kMaxWorkspaceBytes || bytes != sizeof(uint64_t)) return kInvalidValue;
  std::memcpy(&preference->workspace_bytes, value, bytes);
  return kSuccess;
}

// Rows and columns of a matrix as it is multiplied.
uint64_t rows_of(const OpaqueLayout& layout, int32_t operation) {
  return operation == kTransposed ? layout.columns : layout.rows;
}
uint64_t columns_of(const OpaqueLayout& layout, int32_t operation) {
  return operation == kTransposed ? layout.rows : layout.columns;
}

bool fits(const OpaqueDescription& wanted, const OpaqueLayout& a, const OpaqueLayout& b,
          const OpaqueLayout& d) {
  const bool has_epilogue =
      wanted.epilogue == kReluMaskBias || wanted.epilogue == kMaskBiasGradient;
  return has_epilogue && wanted.bias != nullptr && wanted.mask != nullptr &&
         reinterpret_cast<uintptr_t>(wanted.mask) % 16 == 0 &&
         wanted.mask_stride % kMaskMultiple == 0 &&
         wanted.mask_stride >= static_cast<int64_t>(d.rows) && a.type == b.type &&
         a.type == d.type && rows_of(a, wanted.transpose_a) == d.rows &&
         columns_of(b, wanted.transpose_b) == d.columns &&
         columns_of(a, wanted.transpose_a) == rows_of(b, wanted.transpose_b);
}

int find_algorithm(Handle, Description description, Layout a, Layout b, Layout c, Layout d,
                   Preference preference, int wanted, Heuristic* heuristics, int* found) {
  *found = 0;
  if (wanted < 1 || preference == nullptr || c->type != d->type) return kInvalidValue;
  if (!fits(*description, *a, *b, *d)) return kNotSupported;
  // As the library, which reads rows in vectors of 16 bytes: it has nothing for one column.
  if (d->rows % 8 != 0 || a->stride % 8 != 0 || b->stride % 8 != 0) return kNotSupported;
  heuristics[0] = Heuristic{};
  heuristics[0].algorithm.data[0] = 42;
  *found = 1;
  return kSuccess;
}

template <typename Element, typename Sum>
void multiply_elements(const OpaqueDescription& wanted, const void* a_data, const OpaqueLayout& a,
                       const void* b_data, const OpaqueLayout& b, void* d_data,
                       const OpaqueLayout& d) {
  const auto* left = static_cast<const Element*>(a_data);
  const auto* right = static_cast<const Element*>(b_data);
  auto* result = static_cast<Element*>(d_data);
  auto* bias = static_cast<Element*>(wanted.bias);
  auto* mask = static_cast<uint8_t*>(wanted.mask);
  const uint64_t inner = columns_of(a, wanted.transpose_a);
  const bool is_forward = wanted.epilogue == kReluMaskBias;
  std::vector<Sum> sums(d.rows);
  for (uint64_t column = 0; column < d.columns; ++column) {
    uint8_t* const bits = mask + column * static_cast<uint64_t>(wanted.mask_stride) / 8;
    for (uint64_t row = 0; row < d.rows; ++row) {
      Sum sum{0};
      for (uint64_t k = 0; k < inner; ++k) {
        const bool transposed = wanted.transpose_a == kTransposed;
        const uint64_t at = transposed ? k + row * a.stride : row + k * a.stride;
        sum += convert<Sum>(left[at]) * convert<Sum>(right[k + column * b.stride]);
      }
      const auto bit = static_cast<uint8_t>(1u << (row % 8));
      if (is_forward) {
        sum += convert<Sum>(bias[row]);
        const bool positive = sum > 0;
        bits[row / 8] = static_cast<uint8_t>((bits[row / 8] & ~bit) | (positive ? bit : 0));
        sum = positive ? sum : Sum{0};
      } else {
        sum = (bits[row / 8] & bit) != 0 ? sum : Sum{0};
        sums[row] += sum;
      }
      result[row + column * d.stride] = convert<Element>(sum);
    }
  }
  for (uint64_t row = 0; row < d.rows && !is_forward; ++row) {
    bias[row] = convert<Element>(sums[row]);
  }
}

int multiply(Handle, Description description, const void* /*alpha*/, const void* a, Layout a_layout,
             const void* b, Layout b_layout, const void* /*beta*/, const void* c, Layout, void* d,
             Layout d_layout, const Algorithm* algorithm, void* workspace, size_t /*bytes*/,
             void* /*stream*/) {
  if (algorithm == nullptr || algorithm->data[0] != 42 || workspace == nullptr || c != d ||
      !fits(*description, *a_layout, *b_layout, *d_layout)) {
    return kInvalidValue;
  }
  const auto run = [&](auto element, auto sum) {
    multiply_elements<decltype(element), decltype(sum)>(*description, a, *a_layout, b, *b_layout, d,
                                                        *d_layout);
    return kSuccess;
  };
  switch (a_layout->type) {
    case kFloat32:
      return run(float{}, float{});
    case kFloat64:
      return run(double{}, double{});
    case kFloat16:
      return run(float16{}, float{});
    case kBFloat16:
      return run(bfloat16{}, float{});
    default:
      return kInvalidValue;
  }
}

constexpr Functions kEmulated = {
    create,         create_description, destroy_description, set_attribute,  create_layout,
    destroy_layout, create_preference,  destroy_preference,  set_preference, find_algorithm,
    multiply,
};

}  // namespace

const Functions* functions() { return &kEmulated; }

}  // namespace recsys::cublaslt
