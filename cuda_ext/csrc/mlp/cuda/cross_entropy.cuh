// SPDX-License-Identifier: Apache-2.0
// Binary cross entropy of logits and its gradient, in one pass.
#pragma once

#include <cmath>

#include "../mlp_arguments.h"
#include "block_sums.cuh"

namespace recsys::kernels {

// gradient = (sigmoid(logit) - label) factor; block_sums has the sum of each block's losses.
// The exponential is that of -|logit|, so it cannot overflow.
__global__ void cross_entropy(CrossEntropyArguments arguments) {
  const Team warp(kWarpLanes);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kCrossEntropyRows;
  const int64_t last = first + kCrossEntropyRows < arguments.num_rows ? first + kCrossEntropyRows
                                                                      : arguments.num_rows;
  float sum = 0;
  for (int64_t row = first + threadIdx.x; row < last; row += blockDim.x) {
    const float logit = arguments.logits[row];
    const float label = arguments.labels[row];
    const float exponential = expf(-fabsf(logit));
    const float sigmoid = (logit < 0 ? exponential : 1.0f) / (1.0f + exponential);
    // Written so that NaN is kept.
    sum += (logit < 0 ? 0.0f : logit) - logit * label + log1pf(exponential);
    arguments.gradient[row] = (sigmoid - label) * arguments.factor;
  }
  sum = warp.sum(sum);
  const SharedPointer<float> of_warps = dynamic_shared<float>();
  if (warp.lane == 0) {
    of_warps[warp.in_block] = sum * arguments.factor;
  }
  add_over_teams(of_warps, 1, 0, 1, arguments.block_sums + blockIdx.x);
}

}  // namespace recsys::kernels
