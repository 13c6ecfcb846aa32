// SPDX-License-Identifier: Apache-2.0
// The vectors of a sample, wherever they are in memory, as rows of the type of the sums.
#pragma once

#include "../../cpu/prefetch_queue.h"
#include "../../cpu/tiles.h"
#include "../../cpu/vector.h"
#include "../interaction_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

constexpr int kMaxVectors = 64;
constexpr int kMaxDim = 256;

// Reads the vectors of samples. Element is the type of the op's tensors, Stored that of vectors
// 1..N-1: a different type if they are rows of a table.
template <typename Element, typename Stored>
class SampleReader {
 public:
  explicit SampleReader(const InteractionArguments& arguments) : arguments_(arguments) {
    const int64_t bytes = arguments.num_vectors * arguments.dim * int64_t{sizeof(Stored)};
    samples_ahead_ = static_cast<int>(1 + kPrefetchBytes / bytes);
  }

  // Sets rows[0..N-1], readable up to a multiple of a vector. Rows that memory does not hold in
  // this form are converted and padded with zeros in `scratch`, [N][D rounded up].
  void read(int64_t sample, float* scratch, const float** rows) const {
    const int stride = round_up(arguments_.dim, kLanes<float>);
    rows[0] = as_sums(first(sample), scratch);
    for (int i = 1; i < arguments_.num_vectors; ++i) {
      rows[i] = as_sums(other(sample, i - 1), scratch + i * stride);
    }
  }

  // Adds the vectors of a later sample, if there is one before `end`.
  void add_to(PrefetchQueue& queue, int64_t sample, int64_t end) const {
    sample += samples_ahead_;
    if (sample >= end) return;
    const int64_t row_bytes = arguments_.dim * int64_t{sizeof(Stored)};
    const int num_others = arguments_.num_vectors - 1;
    queue.add(first(sample), arguments_.dim * int64_t{sizeof(Element)});
    if (arguments_.table == nullptr) {
      queue.add(other(sample, 0), num_others * row_bytes);
    } else {
      // The first lines at once: each row is on its own page, and the CPU looks up several pages at
      // a time only if they are requested together.
      for (int i = 0; i < num_others; ++i) __builtin_prefetch(other(sample, i));
      if (row_bytes <= kCacheLine) return;
      for (int i = 0; i < num_others; ++i) {
        queue.add(reinterpret_cast<const char*>(other(sample, i)) + kCacheLine,
                  row_bytes - kCacheLine);
      }
    }
  }

 private:
  // Short rows need more of them in flight than one sample may have.
  static constexpr int64_t kPrefetchBytes = 2048;

  const Element* first(int64_t sample) const {
    return static_cast<const Element*>(arguments_.first) + sample * arguments_.first_stride;
  }

  const Stored* other(int64_t sample, int i) const {
    if (arguments_.table == nullptr) {
      return static_cast<const Stored*>(arguments_.rest) + sample * arguments_.rest_stride +
             int64_t{i} * arguments_.dim;
    }
    const int64_t k = sample * (arguments_.num_vectors - 1) + i;
    const int64_t row = arguments_.row_type == IndexType::kInt32
                            ? static_cast<const int32_t*>(arguments_.rows)[k]
                            : static_cast<const int64_t*>(arguments_.rows)[k];
    return static_cast<const Stored*>(arguments_.table) + row * arguments_.dim;
  }

  template <typename From>
  const float* as_sums(const From* from, float* scratch) const {
    constexpr int kStepOfRow = kLanes<float>;
    const int dim = arguments_.dim;
    if constexpr (sizeof(From) == sizeof(float) && sizeof(Element) == sizeof(float)) {
      if (dim % kStepOfRow == 0) return from;
    }
    int k = 0;
    for (; k + kStepOfRow <= dim; k += kStepOfRow) {
      store(scratch + k, rounded<From>(load(from + k)));
    }
    if (k < dim) store(scratch + k, rounded<From>(load_partial(from + k, dim - k)));
    return scratch;
  }

  // Table rows enter as `Element`, as if they had been gathered first.
  template <typename From>
  static Vector<float> rounded(Vector<float> values) {
    if constexpr (sizeof(Element) < sizeof(float)) {
      return widen(narrow(values, Element{}), Element{});
    } else {
      return values;
    }
  }

  const InteractionArguments& arguments_;
  int samples_ahead_;
};

// Reads `count` elements, and some undefined ones up to a whole vector.
template <typename Element>
void read_row(const Element* from, int count, float* to) {
  constexpr int kStepOfRow = kLanes<float>;
  int k = 0;
  for (; k + kStepOfRow <= count; k += kStepOfRow) store(to + k, load(from + k));
  if (k < count) store(to + k, load_partial(from + k, count - k));
}

// Writes a row of sums as Element, `count` of them, and zeros up to `width`.
template <typename Element>
void write_row(const float* sums, int count, int width, bool streaming, Element* to) {
  constexpr int kStepOfRow = kLanes<float>;
  int k = 0;
  if (streaming) {
    for (; k + kStepOfRow <= count; k += kStepOfRow) stream(to + k, load(sums + k));
  } else {
    for (; k + kStepOfRow <= count; k += kStepOfRow) store(to + k, load(sums + k));
  }
  if (k < count) store_partial(to + k, load(sums + k), count - k);
  for (k = count; k < width; ++k) to[k] = Element{};
}

// Whether rows of `columns` elements at these distances are written past the caches: they must
// start at multiples of vectors, and be too many for the caches to keep them for the next reader.
template <typename Element>
bool streams(const void* to, int64_t stride, int64_t columns, int64_t batch) {
  constexpr int64_t kLargerThanCaches = 16 << 20;
  constexpr int64_t kPackedBytes = sizeof(Packed<Element>);
  return batch * columns * int64_t{sizeof(Element)} >= kLargerThanCaches &&
         reinterpret_cast<uintptr_t>(to) % kPackedBytes == 0 &&
         stride * int64_t{sizeof(Element)} % kPackedBytes == 0;
}

}  // namespace recsys::cpu::RECSYS_ISA
