// SPDX-License-Identifier: Apache-2.0
// Reads fields by the types of a schema.

#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>

#include "digits.h"
#include "number.h"
#include "row_format.h"
#include "text_hash.h"
#include "timestamp.h"
#include "wide_keys.h"

namespace clicks {

// Reads a whole number of 64 bits, -?[0-9]{1,19}(.0+)?; returns whether it is valid.
inline bool read_whole_number(const uint8_t* field, uint32_t length, int64_t& number) {
  const uint8_t* const end = field + length;
  const bool negative = length > 0 && *field == '-';
  const uint8_t* at = field + negative;
  const uint8_t* const first = at;
  uint64_t value = 0;  // 19 digits fit
  for (; at < end && *at >= '0' && *at <= '9' && at - first < 19; ++at) {
    value = 10 * value + (*at - '0');
  }
  if (at == first || value > uint64_t{INT64_MAX} + negative) return false;
  if (at < end) {
    if (*at != '.' || end - at < 2) return false;
    if (!std::all_of(at + 1, end, [](uint8_t b) { return b == '0'; })) return false;
  }
  number = static_cast<int64_t>(negative ? 0 - value : value);
  return true;
}

// Length of a text without the ".0" that a whole number may end in.
inline uint32_t without_zeros(const uint8_t* field, uint32_t length) {
  int64_t number;
  if (!read_whole_number(field, length, number)) return length;
  return static_cast<uint32_t>(std::find(field, field + length, '.') - field);
}

// Reads an ISO 8601 time of any year; a time without a date is on 1970-01-01.
inline bool read_time_of_any(const uint8_t* field, uint32_t length, int64_t& milliseconds) {
  if (length < 5) return false;
  if (field[2] != ':') return parse_iso_time({field, length}, 0, milliseconds);
  const std::string text = "1970-01-01 " + std::string(field, field + length);
  const TimeReader reader(reinterpret_cast<const uint8_t*>(text.data()),
                          static_cast<uint32_t>(text.size()));
  return parse_iso_time(reader, 0, milliseconds);
}

// Reads the value of a field of a column without a role: a truth value, a number, a time or a text,
// independent of its spelling; see `_value_of_any` of preproc/clicks/engines/row_values.py. Returns
// false if the value is missing.
inline bool value_of_any(const uint8_t* field, uint32_t length, uint64_t& value) {
  constexpr double kEndOfWhole = 9223372036854775808.0;
  const auto is_one_of = [&](std::string_view first, std::string_view second) {
    const std::string_view text(reinterpret_cast<const char*>(field), length);
    return text == first || text == second;
  };
  const auto hash_of = [&](std::string_view text) {
    value = TextHash::of(reinterpret_cast<const uint8_t*>(text.data()),
                         static_cast<uint32_t>(text.size()));
    return true;
  };
  if (is_one_of("nan", "NaN")) return false;
  if (is_one_of("True", "TRUE")) return hash_of("true");
  if (is_one_of("False", "FALSE")) return hash_of("false");
  int64_t whole;
  double number;
  if (is_one_of("-0", "-0.0")) return hash_of("0");
  if (read_whole_number(field, length, whole)) {
    value = TextHash::of(field, without_zeros(field, length));
  } else if (!parse_number(field, length, number)) {
    int64_t time;
    value = read_time_of_any(field, length, time) ? static_cast<uint64_t>(time)
                                                  : TextHash::of(field, length);
  } else if (std::trunc(number) == number && std::fabs(number) < kEndOfWhole) {
    return hash_of(std::to_string(static_cast<int64_t>(number)));
  } else {
    std::memcpy(&value, &number, sizeof(value));
  }
  return true;
}

// Reads a text or integer as a key; returns the reason to reject it, else kNumReasons.
CLICKS_INLINE RejectReason read_wide_key(const uint8_t* field, uint32_t length, uint8_t type,
                                         WideKey& key) {
  if (type == kWholeNumber) {
    int64_t number;
    if (!read_whole_number(field, length, number)) return kInteger;
    key = WideKey::of(reinterpret_cast<const uint8_t*>(&number), sizeof(number));
  } else if (length > WideKey::kShort) {
    if (length > kMaxTextBytes) return kString;
    if (!is_text(field, length)) return kEncoding;
    key = WideKey::of(field, length);
  } else {
    const uint64_t after_low = bytes_after(std::min(length, 8u));
    const uint64_t after_high = bytes_after(length < 8 ? 0 : length - 8);
    key.words[0] = load64(field) & ~after_low;
    key.words[1] = load64(field + 8) & ~after_high;
    const uint64_t spaces = repeat(' ');
    const uint64_t odd = not_printable(key.words[0] | (spaces & after_low)) |
                         not_printable(key.words[1] | (spaces & after_high));
    if (odd != 0 && !is_text(field, length)) return kEncoding;
    key.hash = TextHash::of(field, length);
    key.length = length;
  }
  key.value = 1;
  return kNumReasons;
}

// Reads a category, as a key if the column has wide keys; returns like `read_wide_key`.
CLICKS_INLINE RejectReason read_category(const uint8_t* field, uint32_t length,
                                         const Field& declared, uint32_t& category, WideKey& key) {
  const uint64_t buckets = declared.buckets;
  if (declared.type == kHexadecimal) {
    if (!parse_hexadecimal(field, length, category)) return kHex;
    if (buckets != 0) category = static_cast<uint32_t>(category % buckets);
    return kNumReasons;
  }
  const RejectReason reason = read_wide_key(field, length, declared.type, key);
  if (reason != kNumReasons || buckets == 0) return reason;
  uint64_t hash = key.hash;
  if (declared.type == kWholeNumber) {  // the hash of its shortest decimal text
    char text[20];
    const auto number = static_cast<int64_t>(key.words[0]);
    const char* const end = std::to_chars(text, text + sizeof(text), number).ptr;
    hash = TextHash::of(reinterpret_cast<const uint8_t*>(text), static_cast<uint32_t>(end - text));
  }
  category = static_cast<uint32_t>(hash % buckets);
  return kNumReasons;
}

// Restores a cell of a table. A cell that has tabs or line ends, or begins with an escape, is
// written as an escape, then the cell with its tabs, line ends and escapes escaped. Other cells are
// unchanged.
inline void unescape(const uint8_t*& field, uint32_t& length, KeyArena& unescaped) {
  uint8_t* const copy = unescaped.copy(field + 1, length - 1);
  uint8_t* out = copy;
  for (uint32_t i = 0; i + 1 < length; ++i) {
    uint8_t byte = copy[i];
    if (byte == kEscape && i + 2 < length) {
      byte = copy[++i];
      byte = byte == 't' ? '\t' : byte == 'n' ? '\n' : byte == 'r' ? '\r' : byte;
    }
    *out++ = byte;
  }
  field = copy;
  length = static_cast<uint32_t>(out - copy);
}

// Whether a byte would end a cell of a table, or its row.
inline bool ends_cell(uint8_t byte) { return (byte == '\t') | (byte == '\n') | (byte == '\r'); }

inline bool needs_escapes(std::string_view cell) {
  return (!cell.empty() && cell[0] == kEscape) || std::any_of(cell.begin(), cell.end(), ends_cell);
}

// Writes a cell that needs escapes to the text of a table; see `unescape`.
template <typename Out>
Out write_escaped(std::string_view cell, Out out) {
  *out++ = kEscape;
  for (const char each : cell) {
    const char letter = each == '\t' ? 't' : each == '\n' ? 'n' : each == '\r' ? 'r' : each;
    if (letter != each || each == kEscape) *out++ = kEscape;
    *out++ = letter;
  }
  return out;
}

// Appends a cell to the text of a table.
inline void append_cell(std::string_view cell, std::string& text) {
  if (needs_escapes(cell)) {
    write_escaped(cell, std::back_inserter(text));
  } else {
    text.append(cell);
  }
}

// Removes the quotes around a field that begins with one, and undoubles those inside it.
inline void unquote(const uint8_t*& field, uint32_t& length, const RowFormat& format,
                    KeyArena& unquoted) {
  if (format.is_table) return unescape(field, length, unquoted);
  const uint32_t quote = format.quote;
  ++field;
  length -= 2;
  if (memchr(field, static_cast<int>(quote), length) == nullptr) return;
  uint8_t* const copy = unquoted.copy(field, length);
  uint8_t* out = copy;
  for (uint32_t i = 0; i < length; ++i) {
    *out++ = field[i];
    i += field[i] == quote;
  }
  field = copy;
  length = static_cast<uint32_t>(out - copy);
}

// Whether a field is one of the texts; sets `texts` to what follows them.
CLICKS_INLINE bool is_one_of(const uint8_t* field, uint32_t length, const uint8_t*& texts) {
  bool is_one = false;
  for (uint32_t left = *texts++; left > 0; --left) {
    const uint32_t size = *texts++;
    is_one |= size == length && std::memcmp(field, texts, size) == 0;
    texts += size;
  }
  return is_one;
}

// Reads a label; returns whether it is valid.
CLICKS_INLINE bool read_label(const uint8_t* field, uint32_t length, const RowFormat& format,
                              const Field& declared, uint8_t& label) {
  const uint8_t* texts = format.texts_of(declared);
  label = is_one_of(field, length, texts);
  return label || format.other_is_negative || is_one_of(field, length, texts);
}

// Removes the blanks at both ends of a text.
inline void trim(const uint8_t*& begin, const uint8_t*& end) {
  const auto is_blank = [](uint8_t byte) { return byte == ' ' || byte == '\t'; };
  while (begin < end && is_blank(*begin)) ++begin;
  while (begin < end && is_blank(end[-1])) --end;
}

CLICKS_INLINE bool is_missing(const uint8_t* field, uint32_t length, const RowFormat& format,
                              const Field& declared) {
  if (declared.role == kListRole) {
    const uint8_t* end = field + length;
    trim(field, end);
    length = static_cast<uint32_t>(end - field);
  }
  const uint8_t* texts = format.texts_of(declared);
  return length == 0 || (*texts != 0 && is_one_of(field, length, texts));
}

// The sort key of a row, as `shuffle_keys` of rules.py.
inline uint64_t shuffle_key(uint64_t seed, uint64_t row) {
  uint64_t z = seed + (row + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

// Writes the features of a time into `categories`; a missing time has no features.
inline bool read_time(const uint8_t* field, uint32_t length, bool is_present, const TimeRule& rule,
                      int64_t& time, uint32_t* categories) {
  if (is_present && !parse_time(field, length, rule, time)) return false;
  for (int feature = 0; feature < kNumTimeFeatures; ++feature) {
    if ((rule.features >> feature & 1) == 0) continue;
    *categories++ = time_feature(time, rule, static_cast<TimeFeature>(feature));
  }
  return true;
}

}  // namespace clicks
