// SPDX-License-Identifier: Apache-2.0
// Reads rows of the joint table: gather, and sums over bags. A row outside the table reads as
// zeros.
#pragma once

#include "../../cuda/row_vectors.cuh"
#include "../lookup_arguments.h"

namespace recsys::kernels {

// Elements of a table that a lane reads at once: 16 bytes.
template <typename Table>
constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(Table));

// Rows that a team loads at once, so that a multiprocessor keeps more bytes in flight than it takes
// to cover the latency of memory.
constexpr int kRowsInFlight = 4;

template <int Width, typename Table>
__device__ __forceinline__ Columns<Table, Width> load_row_columns(const GatherArguments& arguments,
                                                                  int64_t row, int64_t column) {
  if (!is_row(row, arguments.num_table_rows)) {
    return {};
  }
  return load_columns<Width>(static_cast<const Table*>(arguments.table) + row * arguments.dim,
                             column);
}

// output[l] = table[rows[l]]; a block takes block_teams * kRowsInFlight consecutive lookups.
template <typename Table, typename Output, int Width>
__global__ void gather_rows(GatherArguments arguments, int lanes) {
  const Team team(lanes);
  const RowNumbers rows = row_numbers(arguments.rows, arguments.row_type);
  const int64_t first =
      static_cast<int64_t>(team.block) * team.block_teams * kRowsInFlight + team.in_block;
  int64_t row[kRowsInFlight];
#pragma unroll
  for (int i = 0; i < kRowsInFlight; ++i) {
    const int64_t lookup = first + i * team.block_teams;
    row[i] = lookup < arguments.count ? rows[lookup] : -1;
  }
  for (int64_t column = team.lane * Width; column < arguments.dim; column += team.lanes * Width) {
    Columns<Table, Width> columns[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      columns[i] = load_row_columns<Width, Table>(arguments, row[i], column);
    }
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      const int64_t lookup = first + i * team.block_teams;
      if (lookup < arguments.count) {
        Columns<Output, Width> converted;
#pragma unroll
        for (int j = 0; j < Width; ++j) {
          converted.values[j] = convert<Output>(columns[i].values[j]);
        }
        store_columns(static_cast<Output*>(arguments.output) + lookup * arguments.dim, column,
                      converted);
      }
    }
  }
}

// Bag offsets come unchecked from the device: a bag is cut to the existing lookups.
__device__ __forceinline__ int64_t bag_limit(const BagArguments& arguments, int64_t bag) {
  const int64_t offset = load_global(arguments.bag_offsets + bag);
  const int64_t count = arguments.lookup.count;
  return offset < 0 ? 0 : (offset < count ? offset : count);
}

// output[g] = sum over the bag of scale * row, in order; one team per bag.
template <typename Table, typename Output, int Width>
__global__ void sum_bags(BagArguments arguments, int lanes) {
  const Team team(lanes);
  const int64_t bag = team.index();
  if (bag >= arguments.num_bags) {
    return;
  }
  const GatherArguments& lookup = arguments.lookup;
  const RowNumbers rows = row_numbers(lookup.rows, lookup.row_type);
  const int64_t begin = bag_limit(arguments, bag);
  const int64_t end = bag_limit(arguments, bag + 1);
  for (int64_t column = team.lane * Width; column < lookup.dim; column += team.lanes * Width) {
    float sums[Width] = {};
    for (int64_t base = begin; base < end; base += kRowsInFlight) {
      Columns<Table, Width> columns[kRowsInFlight];
      float scales[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        const bool inside = base + i < end;
        columns[i] = load_row_columns<Width, Table>(lookup, inside ? rows[base + i] : -1, column);
        scales[i] =
            inside && arguments.scale != nullptr ? load_global(arguments.scale + base + i) : 1.0f;
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
#pragma unroll
        for (int j = 0; j < Width; ++j) {
          sums[j] += scales[i] * convert<float>(columns[i].values[j]);
        }
      }
    }
    Columns<Output, Width> output;
#pragma unroll
    for (int j = 0; j < Width; ++j) {
      output.values[j] = convert<Output>(sums[j]);
    }
    store_columns(static_cast<Output*>(lookup.output) + bag * lookup.dim, column, output);
  }
}

}  // namespace recsys::kernels
