// SPDX-License-Identifier: Apache-2.0
// Kernels with one fault each, and their right forms: prints what the emulator says to each.
#include <cmath>
#include <cstdio>
#include <string>

#include "cuda/intrinsics.cuh"
#include "cuda/launch.cuh"

namespace {

using namespace recsys;

constexpr int kThreads = 64;

// A lane reads what its neighbour has written; `syncs` says whether a barrier lies between.
__global__ void pass_in_warp(bool syncs, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  const int thread = threadIdx.x;
  shared[thread] = 1.0f;
  if (syncs) {
    __syncwarp();
  } else {
    __shfl_sync(kAllLanes, 0, 0);  // all lanes have come here, yet memory is not ordered
  }
  sums[thread] = shared[thread ^ 1];
}

// The same across the warps of a block: a barrier of a warp is not enough.
__global__ void pass_in_block(bool syncs, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  const int thread = threadIdx.x;
  shared[thread] = 1.0f;
  if (syncs) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  sums[thread] = shared[(thread + 32) % kThreads];
}

// A number is overwritten that another lane may still have to read.
__global__ void overwrite_in_warp(bool syncs, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  const int thread = threadIdx.x;
  shared[thread] = 1.0f;
  __syncwarp();
  const float read = shared[thread ^ 1];
  if (syncs) {
    __syncwarp();
  }
  shared[thread] = read + 1;
  sums[thread] = read;
}

__global__ void diverge_at_block_barrier(bool all, float* sums) {
  if (all || threadIdx.x != 5) {
    __syncthreads();
  } else {
    __syncwarp();
  }
  sums[threadIdx.x] = 0;
}

__global__ void diverge_in_operation(bool all, float* sums) {
  const int thread = threadIdx.x;
  sums[thread] = all || thread % 32 < 16 ? __shfl_xor_sync(kAllLanes, 1.0f, 1)
                                         : static_cast<float>(__ballot_sync(kAllLanes, true));
}

__global__ void shuffle_from_left_lane(bool all, float* sums) {
  if (!all && threadIdx.x % 32 == 31) {
    return;
  }
  sums[threadIdx.x] = __shfl_sync(kAllLanes, 1.0f, 31);
}

__global__ void leave_shared_memory(bool stays, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  shared[threadIdx.x + (stays ? 0 : 1)] = 0.0f;
  sums[threadIdx.x] = 0;
}

__global__ void misalign_vector(bool aligned, float* sums) {
  if (threadIdx.x == 0) {
    store_vector(dynamic_shared<float>() + (aligned ? 4 : 1), Vector{});
  }
  sums[threadIdx.x] = 0;
}

__global__ void read_unwritten(bool writes, float* sums) {
  const SharedPointer<float> shared = dynamic_shared<float>();
  if (writes) {
    shared[threadIdx.x] = 0.0f;
  }
  sums[threadIdx.x] = shared[threadIdx.x];
}

// A lane reads what its neighbour has written to global memory.
__global__ void pass_in_global_memory(bool syncs, float* sums) {
  const int thread = threadIdx.x;
  store_global(sums + thread, 1.0f);
  if (syncs) {
    __syncthreads();
  } else {
    __shfl_sync(kAllLanes, 0, 0);
  }
  const float read = load_global(sums + (thread ^ 1));
  __syncthreads();
  store_global(sums + thread, read);
}

// Two blocks write; no barrier is between blocks.
__global__ void write_from_two_blocks(bool apart, float* sums) {
  const int thread = threadIdx.x;
  store_global(sums + thread + (apart ? blockIdx.x * blockDim.x : 0), 1.0f);
}

__global__ void read_from_two_blocks(bool apart, float* sums) {
  const int thread = threadIdx.x;
  const int own = thread + static_cast<int>(blockIdx.x * blockDim.x);
  const float read = load_global(sums + (apart ? own : 0));
  store_global(sums + own, 0 * read + 1.0f);
}

// Additions go in any order, but nothing else may touch the sum.
__global__ void add_from_two_blocks(bool atomically, float* sums) {
  if (atomically) {
    atomicAdd(sums, 1.0f);
  } else {
    store_global(sums, load_global(sums) + 1.0f);
  }
}

// The barrier that the lanes of a later warp wait at must not let an earlier one through.
__global__ void count_lanes(bool, float* sums) {
  const int thread = threadIdx.x;
  float sum = 1;
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, distance);
  }
  sums[thread] = __shfl_sync(kAllLanes, sum, 0) +
                 static_cast<float>(__ballot_sync(kAllLanes, thread % 2 == 0) == 0x55555555u);
}

void run(const char* name, void (*kernel)(bool, float*), int blocks = 1) {
  for (const bool right : {true, false}) {
    float sums[kThreads] = {};
    const int status =
        launch(kernel, blocks, kThreads / blocks, kThreads * sizeof(float), nullptr, right, sums);
    float total = 0;
    for (int i = 0; i < kThreads; ++i) {
      total += sums[i];
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
  run("pass_in_global_memory", pass_in_global_memory);
  run("write_from_two_blocks", write_from_two_blocks, 2);
  run("read_from_two_blocks", read_from_two_blocks, 2);
  run("add_from_two_blocks", add_from_two_blocks, 2);
  return 0;
}
