// SPDX-License-Identifier: Apache-2.0
// A layer with weights packed in panels: sums of some samples times vectors of outputs, in
// registers.
#pragma once

#include "../../cpu/prefetch_queue.h"
#include "../../cpu/vector.h"
#include "../mlp_arguments.h"

namespace recsys::cpu::RECSYS_ISA {

// A strip is two vectors of outputs.
constexpr int kStripVectors = 2;
constexpr int kStripOutputs = kStripVectors * kLanes<float>;
static_assert(kMlpPanel % kStripOutputs == 0);

// The sums of a tile, its weights and an input must fit the registers: 32 with AVX-512, else 16.
// So many samples are computed in one pass over the weights, one strip at a time ...
constexpr int kOnePassSamples = kVectorBytes == 64 ? 12 : 6;
// ... and more samples in groups of so many, which read fewer numbers per product.
constexpr int kGroupSamples = 6;
constexpr int kGroupStrips = kVectorBytes == 64 ? 2 : 1;

// Products that are summed separately before these sums are added up: a plain sum of 256 squares
// errs several times as much.
constexpr int kLayerSumBlock = 64;

// Returns the weights of an output for the first input; those of the next are kMlpPanel further.
template <typename Stored>
inline const Stored* weights_of(const LayerArguments& arguments, int64_t output) {
  return static_cast<const Stored*>(arguments.weights) +
         output / kMlpPanel * kMlpPanel * arguments.num_inputs + output % kMlpPanel;
}

// Computes kStrips strips, from `output` on, of kSamples samples; calls prefetch(weights) for the
// weights of each input and strip.
template <typename Stored, int kSamples, int kStrips, typename Prefetch>
RECSYS_INLINE void layer_tile(const LayerArguments& arguments, int64_t output, int64_t sample,
                              const Prefetch& prefetch) {
  constexpr int kVectors = kStrips * kStripVectors;
  const int64_t num_inputs = arguments.num_inputs;
  const float* const input = arguments.input + sample * arguments.input_stride;
  float* const results = arguments.output + sample * arguments.output_stride + output;
  const Stored* weights[kStrips];
  RECSYS_UNROLL for (int t = 0; t < kStrips; ++t) {
    weights[t] = weights_of<Stored>(arguments, output + t * kStripOutputs);
  }
  for (int64_t begin = 0; begin < num_inputs; begin += kLayerSumBlock) {
    const bool is_last = num_inputs - begin <= kLayerSumBlock;
    const int64_t end = is_last ? num_inputs : begin + kLayerSumBlock;
    Vector<float> sums[kSamples][kVectors];
    RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) {
      RECSYS_UNROLL for (int v = 0; v < kVectors; ++v) sums[s][v] = Vector<float>{};
    }
    for (int64_t k = begin; k < end; ++k) {
      Vector<float> of_input[kVectors];
      RECSYS_UNROLL for (int t = 0; t < kStrips; ++t) {
        prefetch(weights[t] + k * kMlpPanel);
        RECSYS_UNROLL for (int v = 0; v < kStripVectors; ++v) {
          of_input[t * kStripVectors + v] = load(weights[t] + k * kMlpPanel + v * kLanes<float>);
        }
      }
      RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) {
        const Vector<float> value = broadcast(input[s * arguments.input_stride + k]);
        RECSYS_UNROLL for (int v = 0; v < kVectors; ++v) sums[s][v] += value * of_input[v];
      }
    }
    RECSYS_UNROLL for (int s = 0; s < kSamples; ++s) {
      RECSYS_UNROLL for (int v = 0; v < kVectors; ++v) {
        float* const result = results + s * arguments.output_stride + v * kLanes<float>;
        const float* const before =
            begin > 0 ? result : arguments.bias + output + v * kLanes<float>;
        Vector<float> total = load(before) + sums[s][v];
        // Keeps NaN, which is not below zero.
        if (is_last && arguments.relu) total = total < Vector<float>{} ? Vector<float>{} : total;
        store(result, total);
      }
    }
  }
}

// Strips of a tile with all samples: few samples have too few sums to keep the units busy, and one
// strip too few reads in flight.
template <int kSamples>
constexpr int kStripsOfSamples = kSamples == 1                     ? 4
                                 : kSamples <= kOnePassSamples / 2 ? 2
                                                                   : 1;

// Computes all samples in one pass over the weights of outputs [begin, end).
template <typename Stored, int kSamples = kOnePassSamples>
void layer_in_one_pass(const LayerArguments& arguments, int64_t begin, int64_t end) {
  if constexpr (kSamples > 1) {
    if (arguments.batch < kSamples) {
      return layer_in_one_pass<Stored, kSamples - 1>(arguments, begin, end);
    }
  }
  constexpr int kStrips = kStripsOfSamples<kSamples>;
  constexpr int kInputsAhead = 16;
  const auto prefetch = [](const Stored* weights) {
    RECSYS_UNROLL for (int v = 0; v < kStripVectors; ++v) {
      __builtin_prefetch(weights + kInputsAhead * kMlpPanel + v * kLanes<float>);
    }
  };
  int64_t output = begin;
  for (; output + kStrips * kStripOutputs <= end; output += kStrips * kStripOutputs) {
    layer_tile<Stored, kSamples, kStrips>(arguments, output, 0, prefetch);
  }
  for (; output < end; output += kStripOutputs) {
    layer_tile<Stored, kSamples, 1>(arguments, output, 0, prefetch);
  }
}

// Computes kStrips strips of the samples from `sample` on, at most kSamples of them.
template <typename Stored, int kStrips, int kSamples = kGroupSamples, typename Prefetch>
RECSYS_INLINE void layer_group(const LayerArguments& arguments, int64_t output, int64_t sample,
                               const Prefetch& prefetch) {
  if constexpr (kSamples > 1) {
    if (arguments.batch - sample < kSamples) {
      return layer_group<Stored, kStrips, kSamples - 1>(arguments, output, sample, prefetch);
    }
  }
  layer_tile<Stored, kSamples, kStrips>(arguments, output, sample, prefetch);
}

template <typename Stored, int kStrips, typename Prefetch>
RECSYS_INLINE void layer_groups(const LayerArguments& arguments, int64_t output,
                                const Prefetch& prefetch) {
  for (int64_t sample = 0; sample < arguments.batch; sample += kGroupSamples) {
    layer_group<Stored, kStrips>(arguments, output, sample, prefetch);
  }
}

// Computes the samples of outputs [begin, end) group by group.
template <typename Stored>
void layer_in_groups(const LayerArguments& arguments, int64_t begin, int64_t end) {
  constexpr int64_t kStep = kGroupStrips * kStripOutputs;
  constexpr int64_t kAhead = kStep > kMlpPanel ? kStep : kMlpPanel;
  PrefetchQueue queue;
  const auto prefetch = [&](const Stored*) {
    queue.step();
    if constexpr (kGroupStrips == 1) queue.step();
  };
  int64_t output = begin;
  for (; output + kStep <= end; output += kStep) {
    // The weights come from the L3 cache or from memory: the next ones meanwhile.
    if ((output - begin) % kAhead == 0 && output + 2 * kAhead <= end) {
      const Stored* const next = weights_of<Stored>(arguments, output + kAhead);
      queue.add(next, kAhead * arguments.num_inputs * int64_t{sizeof(Stored)});
    }
    layer_groups<Stored, kGroupStrips>(arguments, output, prefetch);
    if ((output + kStep - begin) % kAhead == 0) queue.finish();
  }
  for (; output < end; output += kStripOutputs)
    layer_groups<Stored, 1>(arguments, output, prefetch);
}

// Computes panels [begin, end) of all samples.
template <typename Stored>
void layer(const LayerArguments& arguments, int64_t begin, int64_t end) {
  begin *= kMlpPanel;
  end *= kMlpPanel;
  if (arguments.batch > kOnePassSamples) return layer_in_groups<Stored>(arguments, begin, end);
  layer_in_one_pass<Stored>(arguments, begin, end);
}

inline void layer_range(const LayerArguments& arguments, int64_t begin, int64_t end) {
  with_stored(arguments.dtype,
              [&](auto stored) { layer<decltype(stored)>(arguments, begin, end); });
}

}  // namespace recsys::cpu::RECSYS_ISA
