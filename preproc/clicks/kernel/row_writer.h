// SPDX-License-Identifier: Apache-2.0
// Writes cells of a table (columns of Arrow strings) as rows of text for the parser; same bytes as
// `write_cells` of preproc/files/raw/tables.py.

#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "typed_fields.h"

namespace clicks {

// A column of texts in Arrow's form. Text t lies between ends t and t + 1 of `text`.
struct CellColumn {
  const void* ends;  // of int32 or, if wide, int64
  const uint8_t* text;
  uint64_t text_bytes;       // that may be read
  uint64_t texts;            // their number
  const uint8_t* text_bits;  // whether each text is present; null: all are
  uint64_t first_text_bit;
  const int32_t* indices;  // the text of each cell; null: the cell of row r is text r
  const uint8_t* index_bits;
  uint64_t first_index_bit;
  uint32_t is_wide;
  uint32_t has_escapes;  // set by `measure_cells`: whether a cell may need escapes

  uint64_t end(uint64_t t) const {
    return static_cast<uint64_t>(is_wide != 0 ? static_cast<const int64_t*>(ends)[t]
                                              : static_cast<const int32_t*>(ends)[t]);
  }

  // Sets the text of a row's cell; returns whether it is present.
  CLICKS_INLINE bool find(uint64_t r, uint64_t& t) const {
    t = r;
    if (indices != nullptr) {
      if (!is_set(index_bits, first_index_bit + r)) return false;
      t = static_cast<uint64_t>(indices[r]);
    }
    return is_set(text_bits, first_text_bit + t);
  }

 private:
  static bool is_set(const uint8_t* bits, uint64_t at) {
    return bits == nullptr || (bits[at / 8] >> at % 8 & 1) != 0;
  }
};

constexpr uint64_t kShortCell = 32;  // bytes that are copied at once

// Returns an upper bound on the bytes of a column's rows, each cell with its delimiter.
inline uint64_t measure_cells(CellColumn& column, uint64_t rows) {
  if (column.texts == 0) return rows;
  const uint64_t begin = column.end(0), end = column.end(column.texts);
  uint8_t found = 0;
  for (uint64_t i = begin; i < end; ++i) {
    const uint8_t byte = column.text[i];
    found |= static_cast<uint8_t>(ends_cell(byte) | (byte == kEscape));
  }
  column.has_escapes = found;
  uint64_t bytes = end - begin;
  if (column.indices != nullptr) {
    bytes = 0;
    for (uint64_t r = 0, t = 0; r < rows; ++r) {
      if (column.find(r, t)) bytes += column.end(t + 1) - column.end(t);
    }
  }
  // There may be an escape before a cell, and before each of its bytes.
  return found != 0 ? 2 * (rows + bytes) : rows + bytes;
}

CLICKS_INLINE uint8_t* write_cell(const CellColumn& column, uint64_t r, uint8_t* out) {
  uint64_t t;
  if (!column.find(r, t)) return out;
  const uint64_t begin = column.end(t), size = column.end(t + 1) - begin;
  const uint8_t* const cell = column.text + begin;
  if (column.has_escapes != 0) {
    const std::string_view text(reinterpret_cast<const char*>(cell), size);
    if (needs_escapes(text)) return write_escaped(text, out);
  }
  // Most cells are short, and copies of a fixed size are fastest.
  if (size <= kShortCell && begin + kShortCell <= column.text_bytes) {
    std::memcpy(out, cell, kShortCell);
  } else if (size > 0) {
    std::memcpy(out, cell, size);
  }
  return out + size;
}

// Writes rows of measured columns and returns their bytes; may overwrite kShortCell more bytes.
inline uint64_t write_rows(const CellColumn* columns, uint64_t count, uint64_t rows,
                           uint8_t* text) {
  uint8_t* out = text;
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t c = 0; c < count; ++c) {
      out = write_cell(columns[c], r, out);
      *out++ = '\t';
    }
    out[-1] = '\n';
  }
  return static_cast<uint64_t>(out - text);
}

}  // namespace clicks
