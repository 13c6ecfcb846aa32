// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels that change the joint table.
#include <algorithm>

#include "../../cuda/dispatch.cuh"
#include "chunks.cuh"
#include "crossing.cuh"

namespace recsys::device {

using namespace kernels;

namespace {

// Columns that a lane takes at once: 16 bytes of a float32 row.
constexpr int kVectorColumns = 4;

bool takes_vectors(const UpdateArguments& arguments) {
  bool fits = fits_vectors(arguments.dim, kVectorColumns, arguments.table, arguments.gradients);
  for (const float* state : arguments.state) {
    fits = fits && fits_vectors(arguments.dim, kVectorColumns, state);
  }
  return fits;
}

// Whether a team reads a row at once: the sums of segments stay in registers.
bool fits_registers(const UpdateArguments& arguments) {
  return takes_vectors(arguments) && arguments.dim <= kWarpLanes * kVectorColumns;
}

ChunkSums chunk_sums_in(const UpdateArguments& arguments) {
  const int64_t elements = chunks_of(arguments.count) * arguments.dim;
  float* memory = static_cast<float*>(arguments.workspace);
  return {memory, memory + elements, fits_registers(arguments) ? nullptr : memory + 2 * elements};
}

template <typename Function>
int with_format(Dtype table, const Function& f) {
  return table == Dtype::kFloat32 ? f(TypeTag<Float32Format>{}) : f(TypeTag<BFloat16Format>{});
}

template <typename Rule>
int launch_chunks(const UpdateArguments& arguments, const ChunkSums& chunk_sums, void* stream) {
  return with_format(arguments.table_dtype, [&](auto format_type) {
    return with_float_type(arguments.gradient_dtype, [&](auto gradient_type) {
      using Format = typename decltype(format_type)::type;
      using Gradient = typename decltype(gradient_type)::type;
      const int lanes = std::max(kFewestLanes, team_lanes(arguments.dim, kVectorColumns));
      const int64_t blocks = blocks_for(chunks_of(arguments.count), kBlockThreads / lanes);
      return launch(update_chunks<Rule, Format, Gradient, kVectorColumns>, blocks, kBlockThreads, 0,
                    stream, arguments, chunk_sums, lanes);
    });
  });
}

int launch_rule(const UpdateArguments& arguments, const ChunkSums& chunk_sums, void* stream) {
  int status = kInvalidValue;
  with_rule<DeviceMath>(arguments.rule, [&](auto rule) {
    status = launch_chunks<decltype(rule)>(arguments, chunk_sums, stream);
  });
  return status;
}

template <int Width>
int launch_any_rows(const UpdateArguments& arguments, const ChunkSums& chunk_sums, void* stream) {
  const int64_t blocks = blocks_for(chunks_of(arguments.count), kBlockThreads / kWarpLanes);
  return launch(update_chunks_of_any_rows<Width>, blocks, kBlockThreads, 0, stream, arguments,
                chunk_sums);
}

template <int Width>
int launch_fix_up(const UpdateArguments& arguments, const ChunkSums& chunk_sums, void* stream) {
  const int lanes = team_lanes(arguments.dim, Width);
  const int64_t blocks = blocks_for(chunks_of(arguments.count), kBlockThreads / lanes);
  return launch(apply_crossing_segments<Width>, blocks, kBlockThreads, 0, stream, arguments,
                chunk_sums, lanes);
}

}  // namespace

size_t update_workspace_bytes(const UpdateArguments& arguments) {
  const int64_t sums = fits_registers(arguments) ? 2 : 3;
  return static_cast<size_t>(sums * chunks_of(arguments.count) * arguments.dim) * sizeof(float);
}

int update_rows(const UpdateArguments& arguments, void* stream) {
  if (arguments.count == 0 || arguments.dim == 0) {
    return 0;
  }
  const ChunkSums chunk_sums = chunk_sums_in(arguments);
  const bool vectors = takes_vectors(arguments);
  int status = 0;
  if (fits_registers(arguments)) {
    status = launch_rule(arguments, chunk_sums, stream);
  } else {
    status = vectors ? launch_any_rows<kVectorColumns>(arguments, chunk_sums, stream)
                     : launch_any_rows<1>(arguments, chunk_sums, stream);
  }
  if (status != 0) {
    return status;
  }
  return vectors ? launch_fix_up<kVectorColumns>(arguments, chunk_sums, stream)
                 : launch_fix_up<1>(arguments, chunk_sums, stream);
}

}  // namespace recsys::device
