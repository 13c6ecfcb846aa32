// SPDX-License-Identifier: Apache-2.0
// A linear layer with one output: each pass reads the activations once.
#pragma once

#include "../mlp_arguments.h"
#include "block_sums.cuh"

namespace recsys::kernels {

// output = x weight + bias. A warp takes kRowsInFlight samples, a lane kWidth neighbouring columns
// at once.
template <typename Element, int kWidth>
__global__ void apply_output_layer(OutputLayerArguments arguments) {
  const Team warp(kWarpLanes);
  const int64_t num_columns = arguments.num_columns;
  const int64_t first = warp.index() * kRowsInFlight;
  const auto* x = static_cast<const Element*>(arguments.x);
  const auto* weight = static_cast<const Element*>(arguments.weight);
  const float bias = convert<float>(*static_cast<const Element*>(arguments.bias));
  auto* output = arguments.output;
  float sums[kRowsInFlight] = {};
  for (int64_t column = warp.lane * kWidth; column < num_columns; column += kWarpLanes * kWidth) {
    const Columns<Element, kWidth> weights = load_columns<kWidth>(weight, column);
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      if (first + i < arguments.num_rows) {
        const Columns<Element, kWidth> values =
            load_columns<kWidth>(x, (first + i) * num_columns + column);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          sums[i] += convert<float>(values.values[k]) * convert<float>(weights.values[k]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsInFlight; ++i) {
    const float sum = warp.sum(sums[i]);
    if (warp.lane == 0 && first + i < arguments.num_rows) {
      output[first + i] = sum + bias;
    }
  }
}

// delta = gradient x weight^T, 0 where a ReLU's output x is not positive; block_sums has, of each
// block's samples, the sums of delta, of gradient * x and of the gradient. The teams of a block, a
// warp each, take turns at its samples. kWidth neighbouring columns a lane.
template <typename Element, int kWidth>
__global__ void differentiate_output_layer(OutputLayerArguments arguments) {
  const int64_t num_columns = arguments.num_columns;
  const BlockRange<kWidth, kOutputLayerRows> range(arguments.num_rows, num_columns);
  constexpr int kBlockColumns = kSumLanes * kWidth;
  const int64_t column = range.column;
  const int64_t last = range.last;
  const int teams = range.teams;
  const auto* x = static_cast<const Element*>(arguments.x);
  const auto* gradient = arguments.gradient;
  auto* delta = static_cast<Element*>(arguments.delta);
  float of_delta[kWidth] = {};
  float of_products[kWidth] = {};
  float of_gradient = 0;
  if (column < num_columns) {
    const Columns<Element, kWidth> weights =
        load_columns<kWidth>(static_cast<const Element*>(arguments.weight), column);
    for (int64_t row = range.first + range.team; row < last; row += kRowsInFlight * teams) {
      Columns<Element, kWidth> values[kRowsInFlight];
      float upstream[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (row + i * teams < last) {
          values[i] = load_columns<kWidth>(x, (row + i * teams) * num_columns + column);
          upstream[i] = gradient[row + i * teams];
        }
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        if (row + i * teams < last) {
#pragma unroll
          for (int k = 0; k < kWidth; ++k) {
            const float value = convert<float>(values[i].values[k]);
            const bool passes = !(arguments.relu && value <= 0.0f);  // NaN passes
            const float product = passes ? upstream[i] * convert<float>(weights.values[k]) : 0.0f;
            of_delta[k] += product;
            of_products[k] += upstream[i] * value;
            values[i].values[k] = convert<Element>(product);
          }
          store_columns<Element, kWidth>(delta, (row + i * teams) * num_columns + column,
                                         values[i]);
          of_gradient += upstream[i];
        }
      }
    }
  }
  const SharedPointer<float> of_teams = dynamic_shared<float>();
  const SharedPointer<float> products_of_teams = of_teams + teams * kBlockColumns;
  const SharedPointer<float> gradient_of_teams = products_of_teams + teams * kBlockColumns;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    of_teams[range.team * kBlockColumns + range.lane * kWidth + k] = of_delta[k];
    products_of_teams[range.team * kBlockColumns + range.lane * kWidth + k] = of_products[k];
  }
  if (range.lane == 0) {
    gradient_of_teams[range.team] = of_gradient;
  }
  float* totals = arguments.block_sums + range.block * (2 * num_columns + 1);
  add_over_teams(of_teams, kBlockColumns, range.first_column, num_columns, totals);
  add_over_teams(products_of_teams, kBlockColumns, range.first_column, num_columns,
                 totals + num_columns);
  if (range.first_column == 0) {
    add_over_teams(gradient_of_teams, 1, 0, 1, totals + 2 * num_columns);
  }
}

}  // namespace recsys::kernels
