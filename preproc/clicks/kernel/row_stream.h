// SPDX-License-Identifier: Apache-2.0
// Reads text in blocks of any size and parses it into batches of rows.

#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "json_rows.h"
#include "kernel_choice.h"
#include "memory.h"
#include "quoted_fields.h"
#include "text_checksum.h"

namespace clicks {

// A longer line cannot be a Criteo row (at most 393 bytes), and buffers must stay bounded.
constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr size_t kReadBytes = size_t{128} << 10;

// Counters that the caller may read while a call runs; setting `cancel` ends the call.
struct Progress {
  uint64_t bytes;
  uint64_t rows;
  uint64_t cancel;
};

struct Cancelled : std::runtime_error {
  Cancelled() : std::runtime_error("cancelled") {}
};

// Counts bytes that were read; throws if the caller cancels. progress: null counts nothing.
inline void report_bytes(Progress* progress, uint64_t bytes) {
  if (progress == nullptr) return;
  if (__atomic_load_n(&progress->cancel, __ATOMIC_RELAXED) != 0) throw Cancelled();
  __atomic_fetch_add(&progress->bytes, bytes, __ATOMIC_RELAXED);
}

struct LineTooLong : std::runtime_error {
  explicit LineTooLong(uint64_t line_offset)
      : std::runtime_error("line at byte " + std::to_string(line_offset) + " is longer than 1 MiB"),
        offset(line_offset) {}
  uint64_t offset;
};

class RowSink {
 public:
  virtual ~RowSink() = default;
  // Returns false to stop reading. Changes to the batch are lost.
  virtual bool rows(RowBatch& batch) = 0;
  virtual void rejected(const RejectedRow& row, const uint8_t* text) = 0;
};

class RowStream {
 public:
  // offset: byte of the file at which the text begins.
  RowStream(RowSink& sink, Progress* progress, uint64_t offset, const RowFormat& format)
      : sink_(sink),
        progress_(progress),
        offset_(offset),
        format_(format),
        begins_file_(offset == 0),
        is_header_(format.has_header != 0 && offset == 0),
        buffer_(kMaxLineBytes + 2 + kReadBytes + kPadding),
        ends_(size_of_ends(format.num_fields)),
        fields_(1),
        objects_(format),
        batch_(format) {
    fields_[0].ends = ends_.data();
  }

  void feed(const uint8_t* text, size_t size) {
    while (size > 0 && !done_) {
      const size_t count = std::min(size, kReadBytes);
      std::memcpy(buffer_.data() + filled_, text, count);
      accept(count);
      text += count;
      size -= count;
    }
  }

  void feed_file(int fd, uint64_t begin, uint64_t end) {
    while (begin < end && !done_) {
      const size_t wanted = std::min<uint64_t>(end - begin, kReadBytes);
      const ssize_t got = pread(fd, buffer_.data() + filled_, wanted, static_cast<off_t>(begin));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw system_error("read failed");
      if (got == 0) throw std::runtime_error("the file became shorter while it was read");
      accept(static_cast<size_t>(got));
      begin += static_cast<uint64_t>(got);
    }
  }

  // Ends the text; a last line without a line feed is a row too.
  void finish() {
    if (filled_ == 0 || done_) return;
    buffer_[filled_++] = '\n';
    parse(filled_);
  }

  // Drops what was read and begins another text, which is not a file.
  void restart() {
    begins_file_ = false;
    filled_ = 0;
    offset_ = lines_ = bytes_ = 0;
    checksum_ = {};
    done_ = false;
  }

  bool done() const { return done_; }
  uint64_t lines() const { return lines_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t checksum() const { return checksum_.value(); }

 private:
  void accept(size_t size) {
    report_bytes(progress_, size);
    checksum_.add(buffer_.data() + filled_, size);
    filled_ += size;
    bytes_ += size;
    const uint8_t* text = buffer_.data();
    const void* last = memrchr(text + filled_ - size, '\n', size);
    if (last != nullptr) {
      const size_t whole = static_cast<const uint8_t*>(last) - text + 1;
      parse(whole);
      std::memmove(buffer_.data(), text + whole, filled_ - whole);
      filled_ -= whole;
      offset_ += whole;
    }
    if (filled_ > kMaxLineBytes + 1) throw LineTooLong(offset_);  // it may end in a CR
  }

  void parse(size_t size) {
    const uint8_t* text = buffer_.data();
    size_t at = begins_file_ ? mark_of_utf8(text, size) : 0;
    begins_file_ = false;
    if (is_header_) {
      at = static_cast<size_t>(static_cast<const uint8_t*>(memchr(text, '\n', size)) - text) + 1;
      ++lines_;
      is_header_ = false;
    }
    const uint8_t* quote = find_quote(text + at, size - at);  // the next one; null: no other
    while (at < size && !done_) {
      const uint64_t first_line = lines_;
      rejected_.clear();
      if (quote != nullptr && quote < text + at) quote = find_quote(text + at, size - at);
      fields_[0].has_quotes = quote != nullptr;
      const uint32_t read = split(text + at, static_cast<uint32_t>(size - at));
      const uint8_t* const cells = format_.is_json != 0 ? objects_.cells() : text + at;
      if (!kernels_.parse_rows(cells, fields_[0], format_, batch_, is_rejected_)) {
        drop_rejected_rows(cells, first_line);
      }
      report_rejected(text + at, at);
      if (batch_.rows > 0) {
        if (progress_ != nullptr) {
          __atomic_fetch_add(&progress_->rows, static_cast<uint64_t>(batch_.rows),
                             __ATOMIC_RELAXED);
        }
        done_ = !sink_.rows(batch_);
      }
      at += read;
    }
  }

  const uint8_t* find_quote(const uint8_t* text, size_t size) const {
    if (format_.quote == 0) return nullptr;
    if (format_.is_json != 0) return text + size;  // cells may have one where the text has none
    return static_cast<const uint8_t*>(memchr(text, format_.quote, size));
  }

  uint32_t split(const uint8_t* text, uint32_t size) {
    FieldEnds& fields = fields_[0];
    if (format_.is_json != 0) {
      return objects_.split(text, size, format_, lines_, fields, rejected_);
    }
    const bool is_quoted = fields.has_quotes && !format_.is_table;
    const auto split_text =
        is_quoted || format_.delimiter_end != 0 ? split_quoted_rows : kernels_.split_rows;
    return split_text(text, size, format_, lines_, fields, rejected_);
  }

  // Returns the length of the byte order mark that some programs write before UTF-8 text.
  static size_t mark_of_utf8(const uint8_t* text, size_t size) {
    static constexpr char kMark[] = "\xef\xbb\xbf";
    constexpr size_t kBytes = sizeof(kMark) - 1;
    return size > kBytes && std::memcmp(text, kMark, kBytes) == 0 ? kBytes : 0;
  }

  // cells: the bytes that the ends of the fields refer to.
  void drop_rejected_rows(const uint8_t* cells, uint64_t first_line) {
    const FieldEnds& fields = fields_[0];
    int kept[kBatchRows];
    int count = 0;
    for (int r = 0; r < batch_.rows; ++r) {
      if (is_rejected_[r]) {
        const uint32_t start = fields.start[r];
        const size_t num_fields = format_.num_fields;
        const uint32_t* ends = fields.ends + static_cast<size_t>(r) * num_fields;
        const WrongField wrong = wrong_field(cells, start, ends, format_);
        const bool is_json = format_.is_json != 0;
        rejected_.push_back({is_json ? objects_.start(r) : start, first_line + fields.line[r],
                             is_json ? objects_.length(r) : ends[num_fields - 1] - start,
                             wrong.reason, wrong.field});
        continue;
      }
      kept[count++] = r;
    }
    batch_.take(batch_, kept, count);
  }

  void report_rejected(const uint8_t* text, size_t at) {
    // Restore line order: rows with a wrong number of fields were rejected before the others.
    std::sort(rejected_.begin(), rejected_.end(),
              [](const RejectedRow& a, const RejectedRow& b) { return a.offset < b.offset; });
    for (RejectedRow row : rejected_) {
      const uint8_t* bytes = text + row.offset;
      row.offset += offset_ + at;
      if (row.length > kMaxLineBytes) throw LineTooLong(row.offset);
      sink_.rejected(row, bytes);
    }
  }

  RowSink& sink_;
  Progress* progress_;
  uint64_t offset_;
  RowFormat format_;
  bool begins_file_;  // the next line is the first one of a file
  bool is_header_;    // and is a header
  const Kernels& kernels_ = kernels();
  Pages<uint8_t> buffer_;
  Pages<uint32_t> ends_;
  Pages<FieldEnds> fields_;
  JsonRows objects_;
  RowBatch batch_;
  uint8_t is_rejected_[kBatchRows];
  std::vector<RejectedRow> rejected_;
  size_t filled_ = 0;
  uint64_t lines_ = 0;
  uint64_t bytes_ = 0;
  TextChecksum checksum_;
  bool done_ = false;
};

}  // namespace clicks
