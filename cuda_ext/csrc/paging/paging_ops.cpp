// SPDX-License-Identifier: Apache-2.0
// torch ops for tables that are mapped files: they bring pages into memory and remove them.
//
// A mark per page tells when a row in it was last used: kOld pages were used before the last
// removal of pages, kRecent ones since then.
#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../registration.h"
#include "../tensor_arguments.h"

namespace recsys {
namespace {

constexpr uint8_t kUnused = 0;
constexpr uint8_t kOld = 1;
constexpr uint8_t kRecent = 2;

// Calls `visit` with (first, count) of each run of consecutive numbers.
template <typename Visit>
void visit_runs(const std::vector<int64_t>& ascending, const Visit& visit) {
  for (size_t first = 0; first < ascending.size();) {
    size_t end = first + 1;
    while (end < ascending.size() && ascending[end] == ascending[end - 1] + 1) ++end;
    visit(ascending[first], static_cast<int64_t>(end - first));
    first = end;
  }
}

#if defined(__linux__)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

int64_t page_size() { return sysconf(_SC_PAGESIZE); }

// Reads the pages from the file, many at a time, and then maps them. Both are only advice: a page
// that is still missing is read when a row in it is used.
void bring_in(const std::vector<Tensor>& tables, const std::vector<int64_t>& pages) {
  const int64_t size = page_size();
  for (const int advice : {MADV_WILLNEED, MADV_POPULATE_WRITE}) {
    for (const Tensor& table : tables) {
      char* base = static_cast<char*>(table.data_ptr());
      visit_runs(pages, [&](int64_t first, int64_t count) {
        madvise(base + first * size, static_cast<size_t>(count * size), advice);
      });
    }
  }
}

void remove(const std::vector<Tensor>& tables, int64_t first, int64_t count) {
  for (const Tensor& table : tables) {
    madvise(static_cast<char*>(table.data_ptr()) + first * page_size(),
            static_cast<size_t>(count * page_size()), MADV_DONTNEED);
  }
}
#else
int64_t page_size() { return 4096; }

void bring_in(const std::vector<Tensor>&, const std::vector<int64_t>&) {}
void remove(const std::vector<Tensor>&, int64_t, int64_t) {}
#endif

// Marks the pages of rows as recent; returns those that were unused, in ascending order.
template <typename Row>
std::vector<int64_t> mark_recent(const Row* rows, int64_t count, int64_t num_rows,
                                 int64_t row_bytes, uint8_t* marks) {
  std::vector<int64_t> unused;
  const int64_t size = page_size();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[i];
    STD_TORCH_CHECK(row >= 0 && row < num_rows, "bring_in_rows: row ", row, " is outside [0, ",
                    num_rows, ")");
    const int64_t last = ((row + 1) * row_bytes - 1) / size;
    for (int64_t page = row * row_bytes / size; page <= last; ++page) {
      if (marks[page] == kUnused) unused.push_back(page);
      marks[page] = kRecent;
    }
  }
  std::sort(unused.begin(), unused.end());
  return unused;
}

int64_t row_bytes_of(const Tensor& table) {
  return table.size(1) * static_cast<int64_t>(sizeof(float));
}

uint8_t* check_tables(const std::vector<Tensor>& tables, const Tensor& marks, const char* op) {
  STD_TORCH_CHECK(!tables.empty() && tables[0].dim() == 2 && tables[0].size(0) > 0, op,
                  ": tables must be [R, D] with rows");
  for (const Tensor& table : tables) {
    check_contiguous(table, op, "a table");
    STD_TORCH_CHECK(table.scalar_type() == ScalarType::Float && table.dim() == 2 &&
                        table.size(0) == tables[0].size(0) && table.size(1) == tables[0].size(1),
                    op, ": tables must be float32 of one shape");
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(table.data_ptr()) % page_size() == 0, op,
                    ": a table does not start at a page");
  }
  const int64_t bytes = tables[0].size(0) * row_bytes_of(tables[0]);
  const int64_t pages = (bytes + page_size() - 1) / page_size();
  return optional_data<uint8_t>(marks, tables[0], ScalarType::Byte, pages, op, "marks");
}

// Marks the pages of rows as recent, and brings in the unused ones; returns their number.
int64_t bring_in_rows(std::vector<Tensor> tables, Tensor marks, const Tensor& rows) {
  const char* op = "bring_in_rows";
  uint8_t* pages = check_tables(tables, marks, op);
  check_contiguous(rows, op, "rows");
  const int64_t num_rows = tables[0].size(0);
  const int64_t row_bytes = row_bytes_of(tables[0]);
  const std::vector<int64_t> unused =
      row_type_of(rows, op) == IndexType::kInt32
          ? mark_recent(static_cast<const int32_t*>(rows.data_ptr()), rows.numel(), num_rows,
                        row_bytes, pages)
          : mark_recent(static_cast<const int64_t*>(rows.data_ptr()), rows.numel(), num_rows,
                        row_bytes, pages);
  bring_in(tables, unused);
  return static_cast<int64_t>(unused.size());
}

// Removes all pages that are not recent from the process; the recent ones become old.
void drop_old_pages(std::vector<Tensor> tables, Tensor marks) {
  uint8_t* pages = check_tables(tables, marks, "drop_old_pages");
  const int64_t count = marks.numel();
  for (int64_t first = 0; first < count;) {
    int64_t end = first;
    while (end < count && pages[end] != kRecent) pages[end++] = kUnused;
    if (end > first) remove(tables, first, end - first);
    while (end < count && pages[end] == kRecent) pages[end++] = kOld;
    first = end;
  }
}

const Op kOps[] = {
    {"bring_in_rows(Tensor[] tables, Tensor(a!) marks, Tensor rows) -> int",
     TORCH_BOX(&bring_in_rows)},
    {"drop_old_pages(Tensor[] tables, Tensor(a!) marks) -> ()", TORCH_BOX(&drop_old_pages)},
};

}  // namespace
}  // namespace recsys

RECSYS_REGISTER_ON_CPU(recsys::kOps)
