// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels that read the joint table.
#include "../../cuda/dispatch.cuh"
#include "gather.cuh"
#include "joint_rows.cuh"
#include "stack_ids.cuh"

namespace recsys::device {

using namespace kernels;

int joint_rows(const JointRowsArguments& arguments, void* stream) {
  if (arguments.count == 0) {
    return 0;
  }
  return with_index_type(arguments.id_type, [&](auto id) {
    return launch(number_joint_rows<decltype(id)>, blocks_for(arguments.count, kBlockThreads),
                  kBlockThreads, 0, stream, arguments);
  });
}

int stack_ids(const StackIdsArguments& arguments, void* stream) {
  const auto run = [&](auto id_type) {
    using Id = typename decltype(id_type)::type;
    const size_t shared_bytes = sizeof(Id) * kStackedSamples * (arguments.num_columns | 1);
    return launch(stack_columns<Id>, blocks_for(arguments.batch, kStackedSamples), kBlockThreads,
                  shared_bytes, stream, arguments);
  };
  return arguments.wide ? run(TypeTag<int64_t>{}) : run(TypeTag<int32_t>{});
}

int embedding_gather(const GatherArguments& arguments, void* stream) {
  if (arguments.count == 0 || arguments.dim == 0) {
    return 0;
  }
  return with_table_and_type(
      arguments.table_dtype, arguments.output_dtype, [&](auto table_type, auto output_type) {
        using Table = typename decltype(table_type)::type;
        using Output = typename decltype(output_type)::type;
        constexpr int kWidth = kVectorWidth<Table>;
        const bool vectors = fits_vectors(arguments.dim, kWidth, arguments.table, arguments.output);
        const int lanes = team_lanes(arguments.dim, vectors ? kWidth : 1);
        const int64_t blocks = blocks_for(arguments.count, kBlockThreads / lanes * kRowsInFlight);
        return vectors ? launch(gather_rows<Table, Output, kWidth>, blocks, kBlockThreads, 0,
                                stream, arguments, lanes)
                       : launch(gather_rows<Table, Output, 1>, blocks, kBlockThreads, 0, stream,
                                arguments, lanes);
      });
}

int embedding_bag(const BagArguments& arguments, void* stream) {
  const GatherArguments& lookup = arguments.lookup;
  if (arguments.num_bags == 0 || lookup.dim == 0) {
    return 0;
  }
  return with_table_and_type(
      lookup.table_dtype, lookup.output_dtype, [&](auto table_type, auto output_type) {
        using Table = typename decltype(table_type)::type;
        using Output = typename decltype(output_type)::type;
        constexpr int kWidth = kVectorWidth<Table>;
        const bool vectors = fits_vectors(lookup.dim, kWidth, lookup.table, lookup.output);
        const int lanes = team_lanes(lookup.dim, vectors ? kWidth : 1);
        const int64_t blocks = blocks_for(arguments.num_bags, kBlockThreads / lanes);
        return vectors ? launch(sum_bags<Table, Output, kWidth>, blocks, kBlockThreads, 0, stream,
                                arguments, lanes)
                       : launch(sum_bags<Table, Output, 1>, blocks, kBlockThreads, 0, stream,
                                arguments, lanes);
      });
}

}  // namespace recsys::device
