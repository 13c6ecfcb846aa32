// SPDX-License-Identifier: Apache-2.0
// Fields of ratings: ids, ratings, and times in any form that occurs in practice.
//
// The definition is preproc/clicks/schema/rating_fields.py.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>

#include "number.h"
#include "row_format.h"
#include "text_hash.h"
#include "timestamp.h"

namespace clicks {

// The values of a row. Ids point into the text, or into a batch's unquoted fields.
struct Rating {
  const uint8_t* id[2];  // of user and item
  uint32_t length[2];
  double rating;
  int64_t time;  // whole, or the key of a float: see `order_key`
};

constexpr uint32_t kMaxIdCharacters = 128;
constexpr double kRatingEnd = 1000;

// Whether a field is 0, or up to 18 digits that do not begin with 0.
inline bool is_digits(const uint8_t* field, uint32_t length) {
  if (length < 1 || length > 18 || (length > 1 && *field == '0')) return false;
  return std::all_of(field, field + length, [](uint8_t b) { return b >= '0' && b <= '9'; });
}

// Whether a field is text without control characters, including those from U+0080 to U+009F.
inline bool is_printable_text(const uint8_t* field, uint32_t length) {
  bool is_ascii = true;
  for (uint32_t i = 0; i < length; ++i) {
    if (field[i] < 0x20 || field[i] == 0x7f) return false;
    is_ascii &= field[i] < 0x80;
  }
  if (is_ascii) return true;
  if (!is_text(field, length)) return false;
  for (uint32_t i = 0; i + 1 < length; ++i) {
    if (field[i] == 0xc2 && field[i + 1] < 0xa0) return false;
  }
  return true;
}

inline bool is_id(const uint8_t* field, uint32_t length, uint8_t type) {
  if (type == kDigits) return is_digits(field, length);
  if (length == 0 || !is_printable_text(field, length)) return false;
  const auto is_first_byte = [](uint8_t b) { return (b & 0xc0) != 0x80; };
  if (length > kMaxIdCharacters &&
      std::count_if(field, field + length, is_first_byte) > kMaxIdCharacters) {
    return false;
  }
  const auto ends_token = [](uint8_t b) { return b == ' ' || b == ',' || b == '"'; };
  return type == kName || std::none_of(field, field + length, ends_token);
}

// An integer that sorts like the float.
inline int64_t order_key(double time) {
  time += 0.0;  // no negative zero
  int64_t bits;
  std::memcpy(&bits, &time, sizeof(bits));
  return bits < 0 ? bits ^ std::numeric_limits<int64_t>::max() : bits;
}

// A point in time as a number: whole, or with a fraction.
struct Moment {
  int64_t whole;
  double real;
  bool has_fraction;
};

// Reads -?([0-9]{1,18}|[1-8][0-9]{18})(\.[0-9]{1,18})?
inline bool parse_plain_moment(const uint8_t* field, uint32_t length, Moment& moment) {
  const uint8_t* const end = field + length;
  const bool negative = length > 0 && *field == '-';
  const uint8_t* at = field + negative;
  const auto digits = [&](const uint8_t* from) {
    return std::find_if(from, end, [](uint8_t b) { return b < '0' || b > '9'; });
  };
  const uint8_t* const point = digits(at);
  const auto count = point - at;
  if (count < 1 || count > 19 || (count == 19 && (*at == '0' || *at == '9'))) return false;
  int64_t value = 0;
  for (; at < point; ++at) value = 10 * value + (*at - '0');
  moment.whole = negative ? -value : value;
  moment.has_fraction = false;
  if (point == end) {
    moment.real = static_cast<double>(moment.whole);
    return true;
  }
  const auto decimals = end - point - 1;
  if (*point != '.' || decimals < 1 || decimals > 18 || digits(point + 1) != end) return false;
  moment.has_fraction = std::any_of(point + 1, end, [](uint8_t b) { return b != '0'; });
  return parse_number(field, length, moment.real);
}

// Reads seconds with an exponent, -?[0-9]{1,2}(\.[0-9]{1,18})?[eE]\+?[0-9]{1,2}, to six decimals.
inline bool parse_exponent_moment(const uint8_t* field, uint32_t length, Moment& moment) {
  const uint8_t* const end = field + length;
  const auto* const mark = std::find_if(field, end, [](uint8_t b) { return (b | 0x20) == 'e'; });
  if (mark == end) return false;
  const uint8_t* power = mark + 1;
  power += power < end && *power == '+';
  const auto is_digit = [](uint8_t b) { return b >= '0' && b <= '9'; };
  if (end - power < 1 || end - power > 2 || !std::all_of(power, end, is_digit)) return false;
  const uint8_t* at = field + (length > 0 && *field == '-');
  const auto* const point = std::find(at, mark, '.');
  if (point - at < 1 || point - at > 2 || !std::all_of(at, point, is_digit)) return false;
  if (point < mark && (mark - point < 2 || mark - point > 19)) return false;
  if (point < mark && !std::all_of(point + 1, mark, is_digit)) return false;
  double seconds;
  char text[32];
  if (!parse_number(field, length, seconds) || std::fabs(seconds) >= 1e20) return false;
  // Whole floats get only the digits of the whole number.
  const int decimals = std::trunc(seconds) == seconds ? 0 : 6;
  const locale_t other = uselocale(c_locale());
  const int written = snprintf(text, sizeof(text), "%.*f", decimals, seconds);
  uselocale(other);
  return parse_plain_moment(reinterpret_cast<const uint8_t*>(text), static_cast<uint32_t>(written),
                            moment);
}

// Reads DD.MM.YYYY or YYYY-MM-DD, optionally one character, HH(:?MM(:?SS([.,][0-9]+)?)?)? and a
// zone ` ?(Z|[+-]HH(:?MM(:?SS)?)?)`, and optionally " UTC"; without a zone the time is UTC.
inline bool parse_date_moment(const uint8_t* field, uint32_t length, Moment& moment) {
  TimeReader reader(field, length);
  CivilTime time;
  if (length > 2 && field[2] == '.') {
    if (!reader.number(2, time.day) || !reader.take('.') || !reader.number(2, time.month) ||
        !reader.take('.') || !reader.number(4, time.year)) {
      return false;
    }
  } else if (!reader.number(4, time.year) || !reader.take('-') || !reader.number(2, time.month) ||
             !reader.take('-') || !reader.number(2, time.day)) {
    return false;
  }
  constexpr uint32_t kUtcBytes = 4;
  if (length > kUtcBytes && std::memcmp(field + length - kUtcBytes, " UTC", kUtcBytes) == 0) {
    length -= kUtcBytes;
    reader.end_at(field + length);
  }
  int64_t micros = 0, zone = 0;
  if (!reader.is_at_end()) {
    if (!reader.skip_printable() || !reader.number(2, time.hour)) return false;
    if (!reader.is_at_end() && !reader.is_at_zone()) {
      const bool has_colons = reader.take(':');
      if (!reader.number(2, time.minute)) return false;
      const bool has_seconds = has_colons ? reader.take(':') : reader.digits() > 0;
      if (has_seconds && !reader.number(2, time.second)) return false;
      if (has_seconds && (reader.take('.') || reader.take(','))) {
        if (reader.digits() == 0) return false;
        micros = reader.fraction(6);
      }
    }
    if (!reader.is_at_end()) {
      reader.take(' ');
      const bool is_west = reader.take('-');
      if (is_west || reader.take('+')) {
        int64_t parts[3] = {0, 0, 0};
        if (!reader.number(2, parts[0])) return false;
        const bool has_colons = reader.take(':');
        for (int i = 1; i < 3; ++i) {
          if (reader.is_at_end() && !(i == 1 && has_colons)) break;
          if (i > 1 && has_colons && !reader.take(':')) return false;
          if (!reader.number(2, parts[i])) return false;
        }
        if (parts[0] > 23 || parts[1] > 59 || parts[2] > 59) return false;
        zone = (is_west ? -1 : 1) * (3600 * parts[0] + 60 * parts[1] + parts[2]);
      } else if (!reader.take('Z')) {
        return false;
      }
    }
  }
  if (!reader.is_at_end() || !time.is_valid()) return false;
  moment.whole = time.milliseconds() / 1000 - zone;
  moment.has_fraction = micros != 0;
  moment.real = static_cast<double>(static_cast<Wide>(moment.whole * int64_t{1000000} + micros) /
                                    Wide{1000000});
  return true;
}

// Reads YYYYMMDD(HHMM(SS)?)? as a date; refuses other numbers.
inline bool parse_date_of_digits(const uint8_t* field, uint32_t length, Moment& moment) {
  TimeReader reader(field, length);
  if (static_cast<uint32_t>(reader.digits()) != length) {
    return !parse_plain_moment(field, length, moment) && parse_date_moment(field, length, moment);
  }
  if (length != 8 && length != 12 && length != 14) return false;
  CivilTime time;
  reader.number(4, time.year);
  reader.number(2, time.month);
  reader.number(2, time.day);
  if (length > 8) reader.number(2, time.hour);
  if (length > 8) reader.number(2, time.minute);
  if (length > 12) reader.number(2, time.second);
  if (!time.is_valid()) return false;
  moment = {time.milliseconds() / 1000, 0, false};
  return true;
}

// Reads a time of ratings. The formats of `parse_time` give keys of seconds. Of the others, "any"
// gives whole seconds, "any_real" gives keys, and "any_digits" reads numbers as dates.
inline bool read_moment(const uint8_t* field, uint32_t length, const TimeRule& rule,
                        int64_t& time) {
  if (std::strncmp(rule.format, "any", 3) != 0) {
    int64_t milliseconds;
    if (!parse_time(field, length, rule, milliseconds)) return false;
    time = order_key(static_cast<double>(milliseconds) / 1000);
    return true;
  }
  const char kind = rule.format[3] == 0 ? 0 : rule.format[4];
  Moment moment;
  const bool is_date = kind == 'd' ? parse_date_of_digits(field, length, moment)
                                   : parse_plain_moment(field, length, moment) ||
                                         parse_date_moment(field, length, moment);
  if (!is_date && !parse_exponent_moment(field, length, moment)) return false;
  if (kind != 'r' && moment.has_fraction) return false;
  time = kind == 'r' ? order_key(moment.real) : moment.whole;
  return true;
}

// Reads a field of a row; returns whether it is valid.
inline bool read_rating(const uint8_t* field, uint32_t length, const Field& declared, Rating& row) {
  switch (declared.role) {
    case kUserRole:
    case kItemRole: {
      const int which = declared.role == kItemRole;
      row.id[which] = field;
      row.length[which] = length;
      return is_id(field, length, declared.type);
    }
    case kRatingRole:
      return parse_number(field, length, row.rating) && 0 <= row.rating && row.rating < kRatingEnd;
    default:
      return read_moment(field, length, declared.time, row.time);
  }
}

}  // namespace clicks
