// SPDX-License-Identifier: Apache-2.0
// Quoted fields, in a subset of RFC 4180 in which every line feed ends a row, and fields separated
// by a delimiter of two bytes.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "row_parser.h"

namespace clicks {

// Whether a delimiter begins at a byte of a row.
inline bool is_delimiter(const uint8_t* at, const uint8_t* end, const RowFormat& format) {
  if (*at != format.delimiter) return false;
  return format.delimiter_end == 0 || (at + 1 < end && at[1] == format.delimiter_end);
}

// Returns the end of the field that begins at `at`: its delimiter, or the row's end. Null if it
// begins with a quote that is not closed right before a delimiter or the row's end.
inline const uint8_t* end_of_field(const uint8_t* at, const uint8_t* end, const RowFormat& format) {
  const auto find = [&](uint32_t byte) {
    const void* const found = memchr(at, static_cast<int>(byte), static_cast<size_t>(end - at));
    return static_cast<const uint8_t*>(found);
  };
  if (format.quote == 0 || format.is_table || at == end || *at != format.quote) {
    for (;; ++at) {
      at = find(format.delimiter);
      if (at == nullptr) return end;
      if (is_delimiter(at, end, format)) return at;
    }
  }
  for (++at; (at = find(format.quote)) != nullptr; ++at) {
    ++at;
    if (at == end || is_delimiter(at, end, format)) return at;
    if (*at != format.quote) return nullptr;
  }
  return nullptr;
}

// Like `split_rows`, for text with quotes or with a delimiter of two bytes.
inline uint32_t split_quoted_rows(const uint8_t* text, uint32_t size, const RowFormat& format,
                                  uint64_t& line, FieldEnds& fields,
                                  std::vector<RejectedRow>& rejected) {
  fields.rows = 0;
  const uint64_t first_line = line;
  const uint8_t* const end_of_text = text + size;
  const uint8_t* row = text;
  while (row < end_of_text && fields.rows < kBatchRows) {
    const auto* const feed = static_cast<const uint8_t*>(memchr(row, '\n', end_of_text - row));
    const uint8_t* const end = feed - (feed > row && feed[-1] == '\r');
    uint32_t* const ends = fields.ends + static_cast<size_t>(fields.rows) * format.num_fields;
    uint32_t count = 0;
    const uint8_t* at = row;
    while ((at = end_of_field(at, end, format)) != nullptr) {
      if (count < format.num_fields) ends[count] = static_cast<uint32_t>(at - text);
      ++count;
      if (at == end) break;
      at += format.delimiter_bytes();
    }
    const auto start = static_cast<uint32_t>(row - text);
    if (at != nullptr && count == format.num_fields) {
      fields.start[fields.rows] = start;
      fields.line[fields.rows++] = static_cast<uint32_t>(line - first_line);
    } else {
      const RejectReason reason = at == nullptr ? kQuote : kColumns;
      rejected.push_back({start, line, static_cast<uint32_t>(end - row), reason, count});
    }
    row = feed + 1;
    ++line;
  }
  return static_cast<uint32_t>(row - text);
}

}  // namespace clicks
