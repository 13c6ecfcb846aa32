// SPDX-License-Identifier: Apache-2.0
// Kernels with one fault each, and their right forms: prints what the emulator says to each.
#include <cmath>
#include <cstdio>
#include <string>

#include "portable.h"

namespace {

using namespace recsys;

constexpr int kThreads = 64;

// A lane reads what its neighbour has written; `syncs` says whether a barrier lies between.
RECSYS_KERNEL(pass_in_warp)(bool syncs, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  const int thread = thread_index();
  shared[thread] = 1.0f;
  if (syncs) {
    sync_warp();
  } else {
    shuffle(0, 0);  // all lanes have come here, yet memory is not ordered
  }
  sums[thread] = shared[thread ^ 1];
}

// The same across the warps of a block: a barrier of a warp is not enough.
RECSYS_KERNEL(pass_in_block)(bool syncs, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  const int thread = thread_index();
  shared[thread] = 1.0f;
  if (syncs) {
    sync_block();
  } else {
    sync_warp();
  }
  sums[thread] = shared[(thread + 32) % kThreads];
}

// A number is overwritten that another lane may still have to read.
RECSYS_KERNEL(overwrite_in_warp)(bool syncs, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  const int thread = thread_index();
  shared[thread] = 1.0f;
  sync_warp();
  const float read = shared[thread ^ 1];
  if (syncs) {
    sync_warp();
  }
  shared[thread] = read + 1;
  sums[thread] = read;
}

RECSYS_KERNEL(diverge_at_block_barrier)(bool all, float* sums) {
  if (all || thread_index() != 5) {
    sync_block();
  } else {
    sync_warp();
  }
  sums[thread_index()] = 0;
}

RECSYS_KERNEL(diverge_in_operation)(bool all, float* sums) {
  const int thread = thread_index();
  sums[thread] = all || thread % 32 < 16 ? shuffle_xor(1.0f, 1) : static_cast<float>(ballot(true));
}

RECSYS_KERNEL(shuffle_from_left_lane)(bool all, float* sums) {
  if (!all && thread_index() % 32 == 31) {
    return;
  }
  sums[thread_index()] = shuffle(1.0f, 31);
}

RECSYS_KERNEL(leave_shared_memory)(bool stays, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  shared[thread_index() + (stays ? 0 : 1)] = 0.0f;
  sums[thread_index()] = 0;
}

RECSYS_KERNEL(misalign_vector)(bool aligned, float* sums) {
  if (thread_index() == 0) {
    store_vector(dynamic_shared<float>() + (aligned ? 4 : 1), Vector{});
  }
  sums[thread_index()] = 0;
}

RECSYS_KERNEL(read_unwritten)(bool writes, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  if (writes) {
    shared[thread_index()] = 0.0f;
  }
  sums[thread_index()] = shared[thread_index()];
}

// The barrier that the lanes of a later warp wait at must not let an earlier one through.
RECSYS_KERNEL(count_lanes)(bool, float* sums) {
  const int thread = thread_index();
  float sum = 1;
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += shuffle_down(sum, distance);
  }
  sums[thread] = shuffle(sum, 0) + static_cast<float>(ballot(thread % 2 == 0) == 0x55555555u);
}

template <typename Kernel>
void run(const char* name, Kernel kernel) {
  for (const bool right : {true, false}) {
    float sums[kThreads];
    const int status = RECSYS_LAUNCH(kernel, 1, kThreads, kThreads * sizeof(float), nullptr, right,
                                     static_cast<float*>(sums));
    float total = 0;
    for (const float sum : sums) {
      total += sum;
    }
    const std::string result = std::to_string(static_cast<int>(total));
    std::printf("%s %s: %s\n", right ? "right" : "wrong", name,
                status != 0         ? emulator_last_error()
                : std::isnan(total) ? "NaN"
                                    : result.c_str());
  }
}

}  // namespace

int main() {
  run("pass_in_warp", pass_in_warp);
  run("pass_in_block", pass_in_block);
  run("overwrite_in_warp", overwrite_in_warp);
  run("diverge_at_block_barrier", diverge_at_block_barrier);
  run("diverge_in_operation", diverge_in_operation);
  run("shuffle_from_left_lane", shuffle_from_left_lane);
  run("leave_shared_memory", leave_shared_memory);
  run("misalign_vector", misalign_vector);
  run("read_unwritten", read_unwritten);
  run("count_lanes", count_lanes);
  return 0;
}
