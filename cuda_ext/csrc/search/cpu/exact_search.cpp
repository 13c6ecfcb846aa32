// SPDX-License-Identifier: Apache-2.0
// Exact search: a scan of 8-bit rows for upper bounds, and products in float64 of the rows whose
// bound does not exclude them.
//
// With u a query, u' = q x step its rounded levels, v a row and v' = r x scale its codes,
//   u.v - u'.v' = (u - u').v' + u.(v - v'),
// which Cauchy and Schwarz bound by scale x (|u - u'| code_norm + |u| residual). The bound of a row
// is computed in float32; its rounding is less than 2^-20 of |u| code_norm, which the slack adds,
// and less than 2^-20 of the sum with the bias, by which the threshold is lowered.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "../../cpu/kernel_table.h"
#include "../../cpu/parallel.h"

namespace recsys::cpu {
namespace {

constexpr double kRounding = 0x1p-20;
constexpr double kUnderflow = 0x1p-100;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Queries outside these bounds have products that float32 rounds to zero or infinity: for them all
// rows are scored.
constexpr double kSmallestQuery = 0x1p-60, kLargestQuery = 0x1p60;

// Bytes of codes that stay in the nearest caches while all queries of a batch scan them.
constexpr int64_t kChunkBytes = 32 << 10;
// Chunks that a thread takes at once.
constexpr int64_t kMostChunksAtOnce = 16;
// Queries that scan a chunk before the next chunk is read.
constexpr int64_t kQueriesAtOnce = 64;

struct ScoredRow {
  double score;
  int64_t row;
};

// The order of the result; equal scores are ordered by row number.
bool is_ahead(const ScoredRow& a, const ScoredRow& b) {
  return a.score > b.score || (a.score == b.score && a.row < b.row);
}

// The best rows so far of one query and thread: a heap with the last of them on top.
class BestRows {
 public:
  explicit BestRows(int64_t count) : count_(count) {}

  void add(const ScoredRow& scored) {
    if (static_cast<int64_t>(rows_.size()) == count_) {
      if (!is_ahead(scored, rows_.front())) return;
      std::pop_heap(rows_.begin(), rows_.end(), is_ahead);
      rows_.pop_back();
    }
    rows_.push_back(scored);
    std::push_heap(rows_.begin(), rows_.end(), is_ahead);
    if (static_cast<int64_t>(rows_.size()) < count_) return;
    const double last = rows_.front().score;
    threshold_ = static_cast<float>(last - std::abs(last) * kRounding - kUnderflow);
  }

  // The threshold that a row's bound must reach.
  float threshold() const { return threshold_; }
  const std::vector<ScoredRow>& rows() const { return rows_; }

  int64_t scored = 0;

 private:
  int64_t count_;
  float threshold_ = -kInfinity;
  std::vector<ScoredRow> rows_;
};

// A query's levels, with the memory that holds them.
struct PackedQuery {
  std::vector<uint32_t> digits;
  ScanQuery scan;
};

PackedQuery pack_query(const TopRowsArguments& arguments, const float* query,
                       const KernelTable& chosen) {
  const int64_t column_groups = (arguments.dim + 3) / 4;
  double largest = 0, squares = 0, lost_squares = 0;
  for (int64_t column = 0; column < arguments.dim; ++column) {
    const double value = query[column];
    largest = std::max(largest, std::abs(value));
    squares += value * value;
  }
  const double step = largest / kQueryLevels;
  std::vector<int16_t> levels(4 * column_groups);
  int32_t sum = 0;
  for (int64_t column = 0; column < arguments.dim && largest > 0; ++column) {
    const double level =
        std::clamp<double>(std::nearbyint(query[column] / step), -kQueryLevels, kQueryLevels);
    const double lost = query[column] - level * step;
    lost_squares += lost * lost;
    levels[column] = static_cast<int16_t>(level);
    sum += levels[column];
  }
  PackedQuery packed{std::vector<uint32_t>(2 * column_groups), {}};
  chosen.pack_digits(levels.data(), column_groups, packed.digits.data());
  const double norm = std::sqrt(squares), lost = std::sqrt(lost_squares);
  const double slack = lost * arguments.code_norm + norm * arguments.residual +
                       (norm + lost) * arguments.code_norm * kRounding;
  const bool is_extreme = largest != 0 && (largest < kSmallestQuery || largest > kLargestQuery);
  packed.scan.digits = packed.digits.data();  // a vector that is moved keeps its memory
  packed.scan.correction = -128 * sum;
  packed.scan.step = static_cast<float>(step);
  packed.scan.slack = is_extreme ? kInfinity : static_cast<float>(slack * (1 + kRounding));
  return packed;
}

// Sums column by column. Products of two float32 are exact in float64, so the bits are the same
// with and without fused operations.
double score_of(const TopRowsArguments& arguments, int64_t query, int64_t row) {
  const float* const a = arguments.queries + query * arguments.dim;
  const float* const b = arguments.table + row * arguments.table_stride;
  double total = 0;
  for (int64_t column = 0; column < arguments.dim; ++column) {
    total += static_cast<double>(a[column]) * b[column];
  }
  return total + arguments.biases[row];
}

bool is_excluded(const TopRowsArguments& arguments, int64_t query, int64_t row) {
  return std::binary_search(arguments.excluded + arguments.offsets[query],
                            arguments.excluded + arguments.offsets[query + 1], row);
}

// Writes the best of all threads.
void write_best(const TopRowsArguments& arguments, int64_t query,
                std::vector<ScoredRow> of_threads) {
  std::sort(of_threads.begin(), of_threads.end(), is_ahead);
  const int64_t num_rows = std::min<int64_t>(arguments.count, of_threads.size());
  for (int64_t rank = 0; rank < arguments.count; ++rank) {
    const int64_t to = query * arguments.count + rank;
    arguments.rows[to] = rank < num_rows ? of_threads[rank].row : -1;
    arguments.scores[to] =
        rank < num_rows ? static_cast<float>(of_threads[rank].score) : -kInfinity;
  }
}

// Finds the rows of queries [first, last).
void search(const TopRowsArguments& arguments, int64_t first, int64_t last) {
  const KernelTable& chosen = kernels();
  const int64_t column_groups = (arguments.dim + 3) / 4;
  const ScanRows rows{column_groups, arguments.codes, arguments.scales, arguments.biases};
  std::vector<PackedQuery> queries;
  for (int64_t query = first; query < last; ++query) {
    queries.push_back(pack_query(arguments, arguments.queries + query * arguments.dim, chosen));
  }
  const int64_t num_blocks = (arguments.num_rows + kSearchBlock - 1) / kSearchBlock;
  const int64_t chunk = std::max<int64_t>(kChunkBytes / (column_groups * kSearchBlock * 4), 1);
  const int64_t threads = std::max(num_threads(), 1);
  const int64_t at_once =
      std::clamp<int64_t>(num_blocks / (8 * threads), chunk, kMostChunksAtOnce * chunk);
  const int64_t num_tasks = std::min(threads, (num_blocks + at_once - 1) / at_once);
  std::vector<std::vector<BestRows>> best(
      num_tasks, std::vector<BestRows>(last - first, BestRows(arguments.count)));
  std::atomic<int64_t> next{0};
  // Each thread takes the next chunk: a thread that other programs hold up does not delay all.
  parallel_for(num_tasks, 1, [&](int64_t first_task, int64_t last_task) {
    std::vector<int32_t> candidates(chunk * kSearchBlock);
    for (int64_t task = first_task; task < last_task; ++task) {
      int64_t size = 1;  // of the first chunk: without a threshold all rows are candidates
      for (int64_t begin; (begin = next.fetch_add(at_once)) < num_blocks;) {
        const int64_t end = std::min(begin + at_once, num_blocks);
        for (int64_t block = begin; block < end;) {
          const int64_t chunk_end = std::min(block + size, end);
          for (int64_t query = first; query < last; ++query) {
            BestRows& of_query = best[task][query - first];
            const int64_t num_candidates =
                chosen.scan(rows, queries[query - first].scan, block, chunk_end,
                            of_query.threshold(), candidates.data());
            for (int64_t k = 0; k < num_candidates; ++k) {
              const int64_t row = block * kSearchBlock + candidates[k];
              if (row >= arguments.num_rows || is_excluded(arguments, query, row)) continue;
              of_query.add({score_of(arguments, query, row), row});
              ++of_query.scored;
            }
          }
          block = chunk_end;
          size = std::min(2 * size, chunk);
        }
      }
    }
  });
  for (int64_t query = first; query < last; ++query) {
    std::vector<ScoredRow> of_threads;
    arguments.scored[query] = 0;
    for (const std::vector<BestRows>& of_task : best) {
      const BestRows& of_query = of_task[query - first];
      of_threads.insert(of_threads.end(), of_query.rows().begin(), of_query.rows().end());
      arguments.scored[query] += of_query.scored;
    }
    write_best(arguments, query, std::move(of_threads));
  }
}

}  // namespace

void run_top_rows(const TopRowsArguments& arguments) {
  for (int64_t first = 0; first < arguments.num_queries; first += kQueriesAtOnce) {
    search(arguments, first, std::min(first + kQueriesAtOnce, arguments.num_queries));
  }
}

}  // namespace recsys::cpu
