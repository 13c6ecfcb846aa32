// SPDX-License-Identifier: Apache-2.0
// Parses text to columns of numbers, by the row grammar of preproc/clicks/schema/grammar.py.
//
// Rows of Criteo's log take a separate path in which the compiler knows the number of fields; for
// rows of a schema, see schema_parser.h.
//
// A batch of rows takes two steps. `split_rows` finds the ends of all fields with 64-byte masks and
// rejects rows with a wrong number of fields. `parse_rows` then converts the fields to numbers, 8
// bytes at a time, without a branch per character. It only marks the other rejected rows;
// `wrong_field` parses them again, slowly, to find the reason.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "digits.h"
#include "row_batch.h"
#include "schema_parser.h"

namespace clicks {

struct ChunkMasks {
  uint64_t delimiters;  // bit i: byte i is a tab or a line feed
  uint64_t line_feeds;
};

constexpr int kHexGroups = (kCategoricals + 3) / 4;

// The steps of the parser without special instructions.
struct PortableSteps {
  // Compilers turn these into AVX2, SSE2 or NEON, depending on the target.
  typedef uint64_t Words __attribute__((vector_size(32)));
  typedef int64_t Numbers __attribute__((vector_size(32)));

  CLICKS_INLINE static ChunkMasks chunk_masks(const uint8_t* p, uint8_t delimiter) {
    ChunkMasks masks{0, 0};
#ifdef CLICKS_X86
    const __m128i tab = _mm_set1_epi8(static_cast<char>(delimiter));
    const __m128i line_feed = _mm_set1_epi8('\n');
    for (int i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
      const uint64_t tabs = static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, tab)));
      const uint64_t feeds =
          static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, line_feed)));
      masks.delimiters |= (tabs | feeds) << (16 * i);
      masks.line_feeds |= feeds << (16 * i);
    }
#else
    for (int i = 0; i < 8; ++i) {
      const auto equal = [&](uint8_t byte) {
        // The high bit of each, moved into 8 adjacent bits.
        return ((bytes_that_are(load64(p + 8 * i), byte) >> 7) * 0x0102040810204080ull) >> 56;
      };
      const uint64_t feeds = equal('\n');
      masks.delimiters |= (equal(delimiter) | feeds) << (8 * i);
      masks.line_feeds |= feeds << (8 * i);
    }
#endif
    return masks;
  }

  CLICKS_INLINE static uint32_t* append_positions(uint64_t bits, uint32_t base, uint32_t* out) {
    // Sixteen at a time, which is usually all, so that no branch depends on their number. Those
    // beyond are overwritten by the next ones.
    const int count = __builtin_popcountll(bits);
    for (int first = 0; first < count; first += 16) {
      for (int i = 0; i < 16; ++i) {
        out[first + i] = base + static_cast<uint32_t>(__builtin_ctzll(bits | uint64_t{1} << 63));
        bits &= bits - 1;
      }
    }
    return out + count;
  }

  CLICKS_INLINE static bool parse_categoricals(const uint8_t* text, const uint32_t* ends,
                                               uint32_t* values, uint32_t& present) {
    uint64_t raw[4 * kHexGroups] = {}, halves[4 * kHexGroups] = {};
    uint32_t mask = 0, longest = 0;
    for (int c = 0; c < kCategoricals; ++c) {
      const uint32_t length = ends[c + 1] - ends[c] - 1;
      raw[c] = load64(text + ends[c] + 1);
      halves[c] = 4 * std::min(length, 8u);
      longest = std::max(longest, length);
      mask |= static_cast<uint32_t>(length != 0) << c;
    }
    present = mask;
    Words valid = Words{} + repeat(0x80);
    uint32_t decoded[4 * kHexGroups];
    for (int g = 0; g < kHexGroups; ++g) {
      Words v, half;
      std::memcpy(&v, raw + 4 * g, sizeof(v));
      std::memcpy(&half, halves + 4 * g, sizeof(half));
      v = ((v << (32 - half)) << (32 - half)) | (((Words{} + repeat('0')) >> half) >> half);
      const Words low = v & repeat(0x7f), letter = low | repeat(0x20);
      const Words is_digit = (low + repeat(0x80 - '0')) & ~(low + repeat(0x7f - '9'));
      const Words is_letter = (letter + repeat(0x80 - 'a')) & ~(letter + repeat(0x7f - 'f'));
      valid &= (is_digit | is_letter) & ~v;
      const Words bit6 = (v >> 6) & repeat(1);
      Words x = (v & repeat(0x0f)) + (bit6 << 3) + bit6;
      x = ((x << 4) | (x >> 8)) & 0x00ff00ff00ff00ffull;
      x = ((x << 8) | (x >> 16)) & 0x0000ffff0000ffffull;
      x = (x << 16) | (x >> 32);
      for (int i = 0; i < 4; ++i) decoded[4 * g + i] = static_cast<uint32_t>(x[i]);
    }
    std::memcpy(values, decoded, kCategoricals * sizeof(uint32_t));
    return (valid[0] & valid[1] & valid[2] & valid[3]) == repeat(0x80) && longest <= 8;
  }

  CLICKS_INLINE static bool parse_numericals(const uint8_t* text, const uint32_t* ends,
                                             int32_t* values, uint64_t& present) {
    uint64_t valid = repeat(0x80);
    bool long_valid = true;
    uint32_t mask = 0;
    for (int c = 0; c < kNumericals; ++c) {
      const uint32_t begin = ends[c] + 1;
      const uint32_t length = ends[c + 1] - begin;
      mask |= static_cast<uint32_t>(length != 0) << c;
      parse_integer(text + begin, length, values[c], valid, long_valid);
    }
    present = mask;
    return valid == repeat(0x80) && long_valid;
  }
};

// Splits whole lines into fields until the batch is full; returns the bytes read.
//
// text: ends in a line feed, followed by kPadding readable bytes.
// line: lines before the text; increased by the lines read.
template <typename Steps>
CLICKS_INLINE uint32_t split_rows(const uint8_t* text, uint32_t size, const RowFormat& format,
                                  uint64_t& line, FieldEnds& fields,
                                  std::vector<RejectedRow>& rejected) {
  const uint8_t delimiter = format.delimiter;
  const ptrdiff_t num_fields = format.num_fields;
  const bool lacks_label = !format.has_label;
  fields.rows = 0;
  uint32_t* row_ends = fields.ends;
  uint32_t start = 0;
  const auto begin_row = [&] {
    *row_ends = start - 1;
    return row_ends + lacks_label;
  };
  uint32_t* out = begin_row();
  const uint64_t first_line = line;
  for (uint32_t chunk = 0; chunk < size; chunk += 64) {
    ChunkMasks masks = Steps::chunk_masks(text + chunk, delimiter);
    if (size - chunk < 64) {
      const uint64_t inside = (uint64_t{1} << (size - chunk)) - 1;
      masks.delimiters &= inside;
      masks.line_feeds &= inside;
    }
    while (masks.line_feeds != 0) {
      const uint64_t upto = masks.line_feeds ^ (masks.line_feeds - 1);
      out = Steps::append_positions(masks.delimiters & upto, chunk, out);
      masks.delimiters &= ~upto;
      masks.line_feeds &= masks.line_feeds - 1;
      const uint32_t end = out[-1];
      if (out - row_ends == num_fields) {
        fields.start[fields.rows] = start;
        fields.line[fields.rows++] = static_cast<uint32_t>(line - first_line);
        // A row of one field may be empty; then the byte before belongs to the previous line.
        row_ends[num_fields - 1] -= end > start && text[end - 1] == '\r';
        row_ends = out;
      } else {
        const uint32_t without_cr = end - (end > start && text[end - 1] == '\r');
        const uint8_t* tabs = text + start;
        const auto fields_of_row = std::count(tabs, text + without_cr, delimiter) + 1;
        rejected.push_back(
            {start, line, without_cr - start, kColumns, static_cast<uint32_t>(fields_of_row)});
      }
      start = end + 1;
      out = begin_row();
      ++line;
      if (fields.rows == kBatchRows) return start;
    }
    out = Steps::append_positions(masks.delimiters, chunk, out);
    // A row with too many fields is rejected anyway, so further ends are dropped.
    if (out - row_ends > num_fields) out = row_ends + num_fields;
  }
  return start;
}

// Parses the rows of `fields`; marks rejected rows with 1, and returns false if there are any.
template <typename Steps>
CLICKS_INLINE bool parse_rows(const uint8_t* text, const FieldEnds& fields, const RowFormat& format,
                              RowBatch& batch, uint8_t* rejected) {
  if (!format.is_criteo) return parse_rows_of_schema<Steps>(text, fields, format, batch, rejected);
  const bool has_label = format.has_label;
  bool all_valid = true;
  batch.rows = fields.rows;
  for (int r = 0; r < fields.rows; ++r) {
    const uint32_t* ends = fields.ends + r * kFields;
    const uint8_t label = text[fields.start[r]];
    bool valid = !has_label || (ends[0] - fields.start[r] == 1 && (label | 1) == '1');
    batch.label[r] = label & has_label;
    uint64_t& numerical_present = batch.numerical_present.words[0][r];
    valid &= Steps::parse_numericals(text, ends, batch.numerical.data() + r * kNumericals,
                                     numerical_present);
    uint32_t present;
    valid &= Steps::parse_categoricals(text, ends + kNumericals,
                                       batch.categorical.data() + r * kCategoricals, present);
    batch.id_present.words[0][r] = numerical_present << kCategoricals | present;
    rejected[r] = !valid;
    all_valid &= valid;
  }
  return all_valid;
}

inline bool is_not_printable(uint8_t byte) { return byte < 0x20 || byte > 0x7e; }

struct WrongField {
  RejectReason reason;
  uint32_t field;
};

// Returns why a field without quotes is not valid in its column, else kNumReasons.
inline RejectReason reject_reason(const uint8_t* field, uint32_t length, const RowFormat& format,
                                  uint32_t f) {
  const Field& declared = format.fields[f];
  RejectReason reason = kNumReasons;
  uint8_t label;
  double number;
  int64_t time;
  uint32_t category;
  int32_t integer;
  WideKey key;
  const bool negative = length > 0 && *field == '-';
  if (format.has_ratings() && declared.role != kIgnored) {
    Rating rating;
    if (!read_rating(field, length, declared, rating)) reason = kString;  // the reader says why
  } else if (declared.role == kLabelRole) {
    if (!read_label(field, length, format, declared, label)) reason = kLabel;
  } else if (declared.role != kIgnored && is_missing(field, length, format, declared)) {
    if (format.split.is_by_time_of(f)) reason = kTime;
  } else if (declared.role == kTimestampRole) {
    if (!parse_time(field, length, declared.time, time)) reason = kTime;
  } else if (declared.role == kListRole) {
    reason = read_list(field, length, declared, nullptr);
  } else if (declared.role == kCategoricalRole) {
    reason = read_category(field, length, declared, category, key);
  } else if (declared.role == kNumericalRole && declared.type == kDecimal) {
    if (!parse_number(field, length, number)) reason = kNumber;
  } else if (declared.role == kNumericalRole) {
    if (!parse_long_integer(field + negative, length - negative, negative, integer)) {
      reason = kInteger;
    }
  }
  const bool is_text = declared.has_categories() && declared.type == kText;
  if (reason == kNumReasons || is_text) return reason;
  return std::any_of(field, field + length, is_not_printable) ? kEncoding : reason;
}

// Returns the leftmost invalid field of a row that has all fields.
inline WrongField wrong_field(const uint8_t* text, uint32_t start, const uint32_t* ends,
                              const RowFormat& format) {
  KeyArena unquoted;
  for (uint32_t f = format.first_field(); f < format.num_fields; ++f) {
    const uint8_t* field = text + start;
    uint32_t length = ends[f] - start;
    if (format.quote != 0 && length > 0 && *field == format.quote) {
      unquote(field, length, format, unquoted);
    }
    start = ends[f] + format.delimiter_bytes();
    const RejectReason reason = reject_reason(field, length, format, f);
    if (reason != kNumReasons) return {reason, f};
  }
  throw std::logic_error("a valid row was marked as rejected");
}

}  // namespace clicks
