// SPDX-License-Identifier: Apache-2.0
// Gradient of the dot interaction on the tensor cores: (S + Sᵀ) X of a sample by one warp, where S
// holds the gradients of the pairs. X goes from memory straight to registers.
//
// The assignment of columns of X to columns of a tile is free. Lane 4 g + t loads 16 neighbouring
// bytes of the rows that the tensor core expects from it, at place g / 2 + 4 (g % 2) of a group of
// 8. Its k-th number is then column g of tile k, and the results that end up in a lane are
// neighbouring columns again, stored 16 bytes at a time: the four lanes of a row store the results
// of columns 2 t at places 0 to 3 and those of columns 2 t + 1 at places 4 to 7, both whole
// sectors.
#pragma once

#include "vectors.cuh"

namespace recsys::kernels {

// Numbers that a warp has in shared memory: a row of the gradient, and a zero behind it.
template <typename Element>
__device__ __host__ __forceinline__ int64_t gradient_numbers(int64_t width) {
  return width + kPerVector<Element>;
}

// Place of the gradient of the product of two vectors; the zero's place if they have no product.
__device__ __forceinline__ int place_of_pair(const InteractionArguments& arguments, int a, int b) {
  const int row = a > b ? a : b;
  const int column = a > b ? b : a;
  if (row >= arguments.num_vectors || row == column) {
    return static_cast<int>(arguments.width);
  }
  return arguments.dim + pair_index(row, column);
}

// Number of the vector that a lane loads as its `i`-th of a step's operand.
template <typename Element>
__device__ __forceinline__ int vector_of(int step, int i, int lane) {
  constexpr int kPer = kPerRegister<Element>;
  return 8 * kPer * step + kPer * (lane % 4) + i % kPer + 4 * kPer * (i / kPer);
}

// Number `i` of the rows of a step as the right operand.
template <typename Element>
__device__ __forceinline__ uint32_t operand_of_rows(const Vector (&rows)[2 * kPerRegister<Element>],
                                                    int half, int i) {
  if constexpr (kPerRegister<Element> == 1) {
    return to_operand<Element>(rows[half].words[i]);
  } else {
    const uint32_t low = rows[2 * half].words[i / 2];
    const uint32_t high = rows[2 * half + 1].words[i / 2];
    return i % 2 == 0 ? (low & 0xffffu) | high << 16 : low >> 16 | (high & 0xffff0000u);
  }
}

// Where row `vector` of the result goes.
template <typename Element>
__device__ __forceinline__ Element* result_row(const InteractionArguments& arguments,
                                               int64_t sample, int vector) {
  return vector == 0 ? static_cast<Element*>(arguments.first_gradient) +
                           sample * arguments.first_gradient_stride
                     : static_cast<Element*>(arguments.rest_gradient) +
                           sample * arguments.rest_gradient_stride + (vector - 1) * arguments.dim;
}

template <typename Element>
__device__ __forceinline__ Vector pack_vector(const float (&values)[kPerVector<Element>]) {
  Vector vector;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kPerRegister<Element> == 1) {
      vector.words[i] = __float_as_uint(values[i]);
    } else {
      vector.words[i] = pack_pair<Element>(values[2 * i], values[2 * i + 1]);
    }
  }
  return vector;
}

// Stores 16 rows of the result from column `base` on. The first vector was also copied to the
// output, so the gradient of that copy is added to its gradient.
template <typename Element>
__device__ __forceinline__ void store_block(const float (&sums)[kPerVector<Element>][4],
                                            SharedPointer<Element> gradient,
                                            const InteractionArguments& arguments, int64_t sample,
                                            int block, int base, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int vector = 16 * block + lane / 4 + 8 * (i / 2);
    const int column = base + kPerVector<Element> * (lane % 4 + i % 2 * 4);
    if (vector < arguments.num_vectors && column < arguments.dim) {
      float values[kPerVector<Element>];
#pragma unroll
      for (int k = 0; k < kPerVector<Element>; ++k) {
        values[k] = sums[k][i];
        if (vector == 0) {
          const Element copied = gradient[column + k];
          values[k] += convert<float>(copied);
        }
      }
      const Vector packed = pack_vector<Element>(values);
      store_global_vector(result_row<Element>(arguments, sample, vector) + column, packed);
      if (arguments.overflow != nullptr && vector > 0) {
        bool overflows = false;
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          overflows = overflows || has_overflow<Element>(packed.words[word]);
        }
        if (overflows) {
          raise_flag(arguments.overflow);
        }
      }
    }
  }
}

// Sizes of the loops, for vectors in blocks of 16.
template <typename Element, int kBlocks>
struct BackwardShape {
  static constexpr int kSteps = 2 * kBlocks / kPerRegister<Element>;
  static constexpr int kLaneVectors = 2 * kPerRegister<Element>;
  static constexpr int kColumns = 8 * kPerVector<Element>;
  // The result is computed in strips: the weights of more blocks would not fit the registers.
  static constexpr int kStripBlocks = kBlocks <= 2 ? 2 : 1;
};

// Places of the numbers of a strip's left operand that a lane holds.
template <typename Element, int kStripBlocks, int kSteps>
struct PairPlaces {
  static constexpr int kPer = kPerRegister<Element>;
  int places[kStripBlocks][kSteps][4][kPer];

  __device__ __forceinline__ void find(const InteractionArguments& arguments, int strip, int lane) {
#pragma unroll
    for (int i = 0; i < kStripBlocks * kSteps * 4 * kPer; ++i) {
      const int block = i / (kSteps * 4 * kPer);
      const int step = i / (4 * kPer) % kSteps;
      const int word = i / kPer % 4;
      places[block][step][word][i % kPer] =
          place_of_pair(arguments, 16 * (strip + block) + lane / 4 + 8 * (word % 2),
                        vector_of<Element>(step, word / 2 * kPer + i % kPer, lane));
    }
  }
};

template <typename Element, int kStripBlocks, int kSteps>
__device__ __forceinline__ void find_weights(
    uint32_t (&weights)[kStripBlocks][kSteps][4], SharedPointer<Element> gradient,
    const PairPlaces<Element, kStripBlocks, kSteps>& pairs) {
#pragma unroll
  for (int i = 0; i < kStripBlocks * kSteps * 4; ++i) {
    const auto& places = pairs.places[i / (kSteps * 4)][i / 4 % kSteps][i % 4];
    const Element low = gradient[places[0]];
    if constexpr (kPerRegister<Element> == 1) {
      weights[i / (kSteps * 4)][i / 4 % kSteps][i % 4] = round_to_tf32(low);
    } else {
      const Element high = gradient[places[1]];
      weights[i / (kSteps * 4)][i / 4 % kSteps][i % 4] = low.bits | static_cast<uint32_t>(high.bits)
                                                                        << 16;
    }
  }
}

// Computes a strip's columns [base, base + kColumns) from what a lane holds of them.
template <typename Element, int kStripBlocks, int kSteps, int kLaneVectors>
__device__ __forceinline__ void make_columns(const Vector (&rows)[kSteps][kLaneVectors],
                                             const uint32_t (&weights)[kStripBlocks][kSteps][4],
                                             SharedPointer<Element> gradient,
                                             const InteractionArguments& arguments, int64_t sample,
                                             int strip, int base, int lane) {
#pragma unroll
  for (int block = 0; block < kStripBlocks; ++block) {
    float sums[kPerVector<Element>][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < kPerVector<Element>; ++i) {
        const uint32_t right[2] = {operand_of_rows<Element>(rows[step], 0, i),
                                   operand_of_rows<Element>(rows[step], 1, i)};
        multiply_add<Element>(sums[i], weights[block][step], right);
      }
    }
    store_block<Element>(sums, gradient, arguments, sample, strip + block, base, lane);
  }
}

template <typename Element, typename Table, int kBlocks>
__global__ void interact_vectors_backward(InteractionArguments arguments) {
  using Shape = BackwardShape<Element, kBlocks>;
  constexpr int kSteps = Shape::kSteps;
  constexpr int kLaneVectors = Shape::kLaneVectors;
  constexpr int kStripBlocks = Shape::kStripBlocks;
  const int warp = threadIdx.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  const SharedPointer<Element> gradient =
      dynamic_shared<Element>() + warp * gradient_numbers<Element>(arguments.width);
  if (lane == 0) {
    gradient[arguments.width] = Element{};
  }
  PairPlaces<Element, kStripBlocks, kSteps> pairs;
  if constexpr (kStripBlocks == kBlocks) {
    pairs.find(arguments, 0, lane);  // the same for all samples
  }
  for (int64_t sample = static_cast<int64_t>(blockIdx.x) * kBlockWarps + warp;
       sample < arguments.batch; sample += static_cast<int64_t>(gridDim.x) * kBlockWarps) {
    const Element* given =
        static_cast<const Element*>(arguments.gradient) + sample * arguments.width;
#pragma unroll 2
    for (int column = lane * kPerVector<Element>; column < arguments.width;
         column += kWarpSize * kPerVector<Element>) {
      store_vector(gradient + column, load_vector(given + column));
    }
    const auto vectors = find_vectors<Element, Table, kBlocks>(arguments, sample, lane);
    VectorSource sources[kSteps][kLaneVectors];
#pragma unroll
    for (int i = 0; i < kSteps * kLaneVectors; ++i) {
      sources[i / kLaneVectors][i % kLaneVectors] =
          source_of(vectors, vector_of<Element>(i / kLaneVectors, i % kLaneVectors, lane),
                    vector_of<Element>(i / kLaneVectors, i % kLaneVectors, 0));
    }
    __syncwarp();  // the gradients are in shared memory
#pragma unroll 1
    for (int strip = 0; strip < kBlocks; strip += kStripBlocks) {
      uint32_t weights[kStripBlocks][kSteps][4];
      if constexpr (kStripBlocks < kBlocks) {
        pairs.find(arguments, strip, lane);
      }
      find_weights(weights, gradient, pairs);
#pragma unroll 1
      for (int base = 0; base < arguments.dim; base += Shape::kColumns) {
        const int column = base + (lane / 8 + lane / 4 % 2 * 4) * kPerVector<Element>;
        Vector rows[kSteps][kLaneVectors];
#pragma unroll
        for (int i = 0; i < kSteps * kLaneVectors; ++i) {
          const VectorSource& source = sources[i / kLaneVectors][i % kLaneVectors];
          rows[i / kLaneVectors][i % kLaneVectors] = to_elements(
              load_stored_columns<Element, Table>(source, column, arguments.dim), source.is_first);
          if constexpr (sizeof(Table) > sizeof(Element) && kBlocks > 2) {
            if (i % 8 == 7) {
              __syncwarp();  // limits the loads in flight to what registers hold
            }
          }
        }
        make_columns<Element, kStripBlocks>(rows, weights, gradient, arguments, sample, strip, base,
                                            lane);
      }
    }
    __syncwarp();  // the next sample overwrites the gradients
  }
}

}  // namespace recsys::kernels
