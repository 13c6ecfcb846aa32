// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of one instruction set, behind function pointers, and the choice among them.
#pragma once

#include "../attention/attention_arguments.h"
#include "../interaction/interaction_arguments.h"
#include "../lookup/lookup_arguments.h"
#include "../mlp/mlp_arguments.h"
#include "../products/transposed_product_arguments.h"
#include "../search/top_rows_arguments.h"
#include "../update/update_arguments.h"

namespace recsys::cpu {

template <typename Arguments>
using RangeKernel = void (*)(const Arguments& arguments, int64_t begin, int64_t end);
using HeadKernel = void (*)(const AttentionArguments& arguments, int64_t sequence, int64_t head,
                            void* scratch);

// The kernels of one instruction set, over ranges of work that threads share.
struct KernelTable {
  const char* name;

  // Bytes of scratch memory for sequences with up to this many keys.
  int64_t (*attention_scratch_bytes)(const AttentionArguments& arguments, int64_t keys);
  HeadKernel attention;
  HeadKernel attention_backward;

  RangeKernel<InteractionArguments> interaction;  // over samples
  RangeKernel<InteractionArguments> interaction_backward;

  // Over positions, or over bags if there are bag offsets. Returns the smallest bad position, or
  // INT64_MAX.
  int64_t (*joint_rows)(const JointRowsArguments& arguments, int64_t begin, int64_t end);
  // Returns the first position in [begin, end) of a row outside the table, or INT64_MAX.
  int64_t (*first_bad_row)(const void* rows, IndexType type, int64_t num_table_rows, int64_t begin,
                           int64_t end);
  // Over lookups. `streaming`: the output is written around the caches.
  void (*gather)(const GatherArguments& arguments, bool streaming, int64_t begin, int64_t end);
  RangeKernel<BagArguments> bag;  // over bags

  RangeKernel<LayerArguments> layer;  // over panels of outputs, of all samples
  // Over samples, a block of kReluBackwardRows or the last, shorter one.
  RangeKernel<ReluBackwardArguments> relu_backward;
  // Over rows, a block of kProductRows or the last, shorter one.
  RangeKernel<TransposedProductArguments> transposed_product;

  // Rearranges the levels of 4 x `column_groups` columns for scan().
  void (*pack_digits)(const int16_t* levels, int64_t column_groups, uint32_t* digits);
  // Writes the rows of blocks [begin, end) whose upper bound is not below `threshold`, counted from
  // the first row of `begin`; returns their number.
  int64_t (*scan)(const ScanRows& rows, const ScanQuery& query, int64_t begin, int64_t end,
                  float threshold, int32_t* candidates);

  // Over chunks of sorted lookups: updates the rows that have one part, and leaves the sums of the
  // parts of the others in the workspace.
  RangeKernel<UpdateArguments> update_chunks;
  // Updates the rows that begin in chunks [begin, end) and have more than one part.
  RangeKernel<UpdateArguments> update_long_rows;
  // All lookups of the rows that a thread owns, in their order.
  void (*sgd_unsorted)(const UpdateArguments& arguments, int owner, int num_owners);
};

// Built from kernels_<name>.cpp, each with the compiler flags of its instruction set.
extern const KernelTable portable_kernels;
#if defined(__x86_64__)
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

// Returns the best kernels this CPU runs. RECSYS_CPU_KERNELS=portable|avx2|avx512 selects others,
// to test them or to bisect a problem; throws std::runtime_error if the CPU cannot run them.
const KernelTable& kernels();

// Makes `kernels` return those of an instruction set, for tests; the best ones if `name` is null.
void use_kernels(const char* name);

}  // namespace recsys::cpu
