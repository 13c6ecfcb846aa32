// SPDX-License-Identifier: Apache-2.0
// The C interface of the Criteo kernel, for binding.py.
//
// Text is fed as ranges of a file or as blocks in memory. All state is in handles, so calls with
// different handles may run in parallel. Calls return 0 or a negative status, or a handle or null.
// clicks_last_message() describes the last error of the calling thread.

#include <exception>
#include <memory>
#include <string>

#include "count_table.h"
#include "line_transform.h"
#include "rating_rows.h"
#include "row_encoder.h"
#include "row_stream.h"
#include "row_writer.h"
#include "run_merge.h"
#include "wide_merge.h"

#define CLICKS_API extern "C" __attribute__((visibility("default")))

namespace clicks {
namespace {

enum Status : int { kOk = 0, kFailed = -1, kCancelled = -2, kLineTooLong = -3, kRejected = -4 };

constexpr uint64_t kNoOffset = ~uint64_t{0};

thread_local std::string last_message;
thread_local uint64_t last_offset = kNoOffset;

Status failed(Status status, const std::exception& error, uint64_t offset = kNoOffset) {
  last_message = error.what();
  last_offset = offset;
  return status;
}

template <typename Body>
int guarded(const Body& body) {
  try {
    body();
    return kOk;
  } catch (const Cancelled& error) {
    return failed(kCancelled, error);
  } catch (const LineTooLong& error) {
    return failed(kLineTooLong, error, error.offset);
  } catch (const std::exception& error) {
    return failed(kFailed, error);
  }
}

template <typename Handle, typename Make>
Handle* guarded_make(const Make& make) {
  Handle* handle = nullptr;
  guarded([&] { handle = make(); });
  return handle;
}

}  // namespace

struct ScanSummary {
  uint64_t rows;
  uint64_t positives;
  uint64_t lines;
  uint64_t bytes;
  uint64_t rejected[kNumReasons];
  uint64_t num_runs;
  // Rows of each split, and the least and the greatest value that the split compared.
  uint64_t split_rows[kNumSplits];
  uint64_t split_values[2];
};

namespace {

class RowScanner final : public RowSink {
 public:
  RowScanner(const RowFormat& format, size_t table_bytes, uint64_t row_limit, int runs_fd,
             int rejects_fd)
      : counts_(format, table_bytes, runs_fd),
        split_(format.split),
        counts_train_(format.counts_train != 0),
        num_lists_(format.num_lists),
        row_limit_(row_limit),
        rejects_fd_(rejects_fd) {
    summary_.split_values[0] = ~uint64_t{0};
  }

  bool rows(RowBatch& batch) override {
    const int count =
        static_cast<int>(std::min(static_cast<uint64_t>(batch.rows), row_limit_ - summary_.rows));
    if (split_.kind != SplitRule::kNone) split_rows(batch, count);
    counts_.add(batch, count);
    summary_.rows += static_cast<uint64_t>(count);
    for (int r = 0; r < count; ++r) summary_.positives += batch.label[r];
    return summary_.rows < row_limit_;
  }

  // Counts the rows of each split; hides the categories of rows that must not be counted.
  void split_rows(RowBatch& batch, int count) {
    for (int r = 0; r < count; ++r) {
      const uint64_t value = batch.split_value[r];
      const int split = split_.split_of(value);
      ++summary_.split_rows[split];
      auto& [least, most] = summary_.split_values;
      least = std::min(least, value);
      most = std::max(most, value);
      if (!counts_train_ || split == 0) continue;
      batch.id_present.clear_row(r);
      for (uint32_t l = 0; l < num_lists_; ++l) batch.lists[l].end[r] = batch.lists[l].begin[r];
    }
  }

  void rejected(const RejectedRow& row, const uint8_t* text) override {
    ++summary_.rejected[row.reason];
    if (rejects_fd_ < 0) return;
    const RejectedHeader header{row.offset, row.line, row.length, row.reason};
    write_all(rejects_fd_, &header, sizeof(header));
    write_all(rejects_fd_, text, row.length);
  }

  CategoryCounts counts_;
  SplitRule split_;
  bool counts_train_;
  uint32_t num_lists_;
  uint64_t row_limit_;
  int rejects_fd_;
  ScanSummary summary_{};  // of what was read so far, without lines, bytes and runs
};

}  // namespace

// Feeds text to a scanner or an encoder.
struct Reader {
  Reader(std::unique_ptr<RowSink> to, Progress* progress, uint64_t offset, const RowFormat& format)
      : sink(std::move(to)), stream(*sink, progress, offset, format) {}
  std::unique_ptr<RowSink> sink;
  RowStream stream;
};

// The last error of this thread, and its byte in the file or kNoOffset.
CLICKS_API const char* clicks_last_message() { return last_message.c_str(); }
CLICKS_API uint64_t clicks_last_offset() { return last_offset; }

// Version of runs, rejects files and checksums; change it whenever the same text could give others.
CLICKS_API int clicks_kernel_version() { return 18; }

CLICKS_API int clicks_read_text(Reader* reader, const uint8_t* text, uint64_t size) {
  return guarded([&] { reader->stream.feed(text, size); });
}

// Whether all wanted rows were read; more text then has no effect.
CLICKS_API int clicks_read_done(const Reader* reader) { return reader->stream.done(); }

CLICKS_API int clicks_read_file(Reader* reader, int fd, uint64_t begin, uint64_t end) {
  return guarded([&] { reader->stream.feed_file(fd, begin, end); });
}

// Checksum of the text that was read.
CLICKS_API uint64_t clicks_read_checksum(const Reader* reader) { return reader->stream.checksum(); }

CLICKS_API void clicks_read_close(Reader* reader) { delete reader; }

// packed: a RowFormat. offset: byte of the file at which the text begins.
CLICKS_API Reader* clicks_scan_open(const void* packed, uint64_t packed_bytes, uint64_t table_bytes,
                                    uint64_t row_limit, int runs_fd, int rejects_fd,
                                    uint64_t offset, Progress* progress) {
  return guarded_make<Reader>([&] {
    const RowFormat format(packed, packed_bytes);
    auto sink = std::make_unique<RowScanner>(format, table_bytes, row_limit, runs_fd, rejects_fd);
    return new Reader(std::move(sink), progress, offset, format);
  });
}

CLICKS_API int clicks_scan_finish(Reader* scan, ScanSummary* summary) {
  return guarded([&] {
    scan->stream.finish();
    auto& sink = static_cast<RowScanner&>(*scan->sink);
    sink.counts_.spill();
    *summary = sink.summary_;
    summary->lines = scan->stream.lines();
    summary->bytes = scan->stream.bytes();
    summary->num_runs = sink.counts_.runs().size();
  });
}

CLICKS_API void clicks_scan_runs(const Reader* scan, Run* runs) {
  const auto& written = static_cast<const RowScanner&>(*scan->sink).counts_.runs();
  std::copy(written.begin(), written.end(), runs);
}

// Reads ratings to columns; packed, offset: see `clicks_scan_open`.
CLICKS_API Reader* clicks_ratings_open(const void* packed, uint64_t packed_bytes, uint64_t offset,
                                       Progress* progress) {
  return guarded_make<Reader>([&] {
    const RowFormat format(packed, packed_bytes);
    if (!format.has_ratings()) throw std::logic_error("the fields are not those of ratings");
    return new Reader(std::make_unique<RatingRows>(), progress, offset, format);
  });
}

CLICKS_API int clicks_ratings_finish(Reader* ratings) {
  return guarded([&] { ratings->stream.finish(); });
}

// Counts what was read since rows were last taken, and the lines of the text so far.
CLICKS_API void clicks_ratings_counts(const Reader* ratings, RatingCounts* counts) {
  *counts = static_cast<const RatingRows&>(*ratings->sink).counts();
  counts->lines = ratings->stream.lines();
}

CLICKS_API void clicks_ratings_take(Reader* ratings, const RatingColumns* columns) {
  static_cast<RatingRows&>(*ratings->sink).take(*columns);
}

// Merges the runs of one column and writes its keys to keys_fd in id order: uint32, int64 or the
// bytes of texts. For texts, ends_fd receives the end of each as uint64. known, pending_fd: see
// `Growth`.
CLICKS_API int clicks_merge(const RunSlice* runs, uint64_t num_runs, uint64_t frequency_limit,
                            uint64_t max_ids, uint64_t budget_bytes, uint32_t type,
                            const ColumnDictionary* known, int keys_fd, int ends_fd, int pending_fd,
                            Progress* progress, MergeResult* result) {
  return guarded([&] {
    const MergeRule rule{frequency_limit, max_ids, budget_bytes};
    const Growth growth{known, pending_fd};
    const auto key_type = static_cast<KeyType>(type);
    if (key_type == KeyType::kNarrow) {
      *result = RunMerge(runs, num_runs, rule, growth, progress).run(keys_fd);
    } else {
      *result = WideMerge(runs, num_runs, rule, growth, key_type, progress).run(keys_fd, ends_fd);
    }
  });
}

// Takes the contents of the files of `clicks_merge`. Wide keys must outlive the handle; ends: null
// except for texts.
CLICKS_API ColumnDictionary* clicks_dictionary_open(uint32_t type, const uint8_t* keys,
                                                    uint64_t bytes, const uint8_t* ends,
                                                    uint64_t count) {
  return guarded_make<ColumnDictionary>([&] {
    auto dictionary = std::make_unique<ColumnDictionary>();
    if (static_cast<KeyType>(type) == KeyType::kNarrow) {
      const auto* categories = reinterpret_cast<const uint32_t*>(keys);
      dictionary->narrow = std::make_unique<Dictionary>(categories, count);
    } else {
      dictionary->wide = std::make_unique<WideDictionary>(WideKeys(keys, bytes, ends), count);
    }
    return dictionary.release();
  });
}

CLICKS_API void clicks_dictionary_close(ColumnDictionary* dictionary) { delete dictionary; }

// targets: ascending, disjoint row ranges of the text, or all rows of each split; must outlive the
// handle. packed, offset: see `clicks_scan_open`.
CLICKS_API Reader* clicks_encode_open(const ColumnDictionary* const* dictionaries,
                                      const void* packed, uint64_t packed_bytes,
                                      EncodeTarget* targets, uint64_t num_targets, uint64_t offset,
                                      Progress* progress) {
  return guarded_make<Reader>([&] {
    const RowFormat format(packed, packed_bytes);
    if (format.lacks_edges()) throw std::logic_error("the edges of bins were not found yet");
    std::unique_ptr<EncodingSink> sink;
    if (format.split.kind == SplitRule::kNone) {
      sink = std::make_unique<RowEncoder>(format, dictionaries, targets, num_targets);
    } else {
      sink = std::make_unique<SplitEncoder>(format, dictionaries, targets, num_targets);
    }
    return new Reader(std::move(sink), progress, offset, format);
  });
}

// Writes buffered rows and returns the rows read.
CLICKS_API int clicks_encode_finish(Reader* encode, uint64_t* rows) {
  return guarded([&] {
    encode->stream.finish();
    auto& sink = static_cast<EncodingSink&>(*encode->sink);
    sink.finish();
    *rows = sink.seen();
  });
}

// Prepares columns of cells for `clicks_write_rows`; returns the bytes that it may write.
CLICKS_API uint64_t clicks_measure_rows(CellColumn* columns, uint64_t count, uint64_t rows) {
  uint64_t bytes = kShortCell;
  for (uint64_t c = 0; c < count; ++c) bytes += measure_cells(columns[c], rows);
  return bytes;
}

// Writes the text of rows; returns its bytes.
CLICKS_API uint64_t clicks_write_rows(const CellColumn* columns, uint64_t count, uint64_t rows,
                                      uint8_t* text) {
  return write_rows(columns, count, rows, text);
}

// path: a feature file.
CLICKS_API LineTransform* clicks_transform_open(const char* path) {
  return guarded_make<LineTransform>([&] { return new LineTransform(path); });
}

// Numbers of a row's numerical features, columns of ids, ids, and ids of lists.
CLICKS_API void clicks_transform_shape(const LineTransform* transform, uint32_t shape[4]) {
  const int sizes[] = {transform->num_numerical(), transform->num_columns(), transform->num_slots(),
                       transform->num_list_slots()};
  std::copy(std::begin(sizes), std::end(sizes), shape);
}

// Categories of each column.
CLICKS_API void clicks_transform_columns(const LineTransform* transform, uint64_t* categories) {
  for (const auto& dictionary : transform->file().dictionaries()) {
    *categories++ = dictionary.categories();
  }
}

// Returns kRejected if a line is not a valid row; sets the first such line, and the last error's
// message says why.
CLICKS_API int clicks_transform_rows(LineTransform* transform, int form, const uint8_t* text,
                                     uint64_t size, uint64_t lines, float* numerical, int64_t* ids,
                                     float* scale, uint64_t* rejected) {
  bool valid = true;
  const int status = guarded([&] {
    RejectedLine line;
    const RowForm row_form = form == 0 ? RowForm::kLine : RowForm::kFields;
    valid = transform->run(row_form, text, size, lines, numerical, ids, scale, &line);
    if (valid) return;
    last_message = line.message;
    *rejected = line.line;
  });
  return status == kOk && !valid ? kRejected : status;
}

CLICKS_API void clicks_transform_close(LineTransform* transform) { delete transform; }

}  // namespace clicks
