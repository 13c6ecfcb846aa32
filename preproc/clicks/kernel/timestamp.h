// SPDX-License-Identifier: Apache-2.0
// Times: parses texts to milliseconds since 1970, and derives features from them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace clicks {

// How the times of a column are read.
struct TimeRule {
  // unix_s, unix_ms, unix_us, unix_ns, iso8601, or text with %Y %y %m %d %H %I %p %M %S; padded
  // with zeros.
  char format[32];
  int32_t zone_minutes;  // east of UTC, for times without a zone and for the features
  uint32_t features;     // bit i is set: derive TimeFeature i
};

enum TimeFeature { kHour, kWeekday, kWeekend, kNumTimeFeatures };

inline uint32_t time_features(const TimeRule& rule) {
  return static_cast<uint32_t>(__builtin_popcount(rule.features & ((1u << kNumTimeFeatures) - 1)));
}

constexpr int64_t kDayMs = 86400000;
constexpr int64_t kEndOfTimes = 7258118400000;  // 2200-01-01

// Reads the digits, letters and marks of a time, one after the other.
class TimeReader {
 public:
  TimeReader(const uint8_t* text, uint32_t length) : at_(text), end_(text + length) {}

  bool is_at_end() const { return at_ == end_; }
  bool take(uint8_t byte) {
    if (at_ == end_ || *at_ != byte) return false;
    ++at_;
    return true;
  }
  // Takes exactly this many digits.
  bool number(int digits, int64_t& value) {
    if (end_ - at_ < digits) return false;
    uint64_t number = 0;  // 19 digits fit
    for (; digits > 0; --digits, ++at_) {
      if (*at_ < '0' || *at_ > '9') return false;
      number = 10 * number + (*at_ - '0');
    }
    value = static_cast<int64_t>(number);
    return true;
  }
  // Takes one or two digits.
  bool one_or_two(int64_t& value) { return number(std::clamp(digits(), 1, 2), value); }
  // Takes AM or PM in any case.
  bool half_of_day(bool& is_afternoon) {
    if (end_ - at_ < 2 || (at_[1] | 0x20) != 'm') return false;
    is_afternoon = (at_[0] | 0x20) == 'p';
    const bool is_half = is_afternoon || (at_[0] | 0x20) == 'a';
    at_ += 2;
    return is_half;
  }
  bool skip_printable() { return at_ < end_ && *at_ >= 0x20 && *at_++ < 0x7f; }
  bool is_at_zone() const {
    return at_ < end_ && (*at_ == ' ' || *at_ == '+' || *at_ == '-' || *at_ == 'Z');
  }
  void end_at(const uint8_t* end) { end_ = end; }
  int digits() const {
    return static_cast<int>(std::find_if(at_, end_, [](uint8_t b) { return b < '0' || b > '9'; }) -
                            at_);
  }
  // Takes digits; returns the first three as a number, padded with zeros.
  int64_t milliseconds() { return fraction(3); }
  int64_t fraction(int wanted) {
    const int count = digits();
    int64_t value = 0;
    for (int i = 0; i < wanted; ++i) value = 10 * value + (i < count ? at_[i] - '0' : 0);
    at_ += count;
    return value;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

struct CivilTime {
  int64_t year = 1970, month = 1, day = 1, hour = 0, minute = 0, second = 0;

  // Whether the time exists; leap seconds are not valid.
  bool is_valid() const {
    static constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (year < 1 || month < 1 || month > 12 || hour > 23 || minute > 59 || second > 59)
      return false;
    return day >= 1 && day <= kDays[month - 1] + (month == 2 && is_leap(year));
  }
  int64_t milliseconds() const {
    static constexpr int kBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    const int64_t past = year - 1;
    const int64_t leaps = past / 4 - past / 100 + past / 400;
    const int64_t days =
        365 * past + leaps - 719162 + kBefore[month - 1] + (month > 2 && is_leap(year)) + day - 1;
    return kDayMs * days + 1000 * (3600 * hour + 60 * minute + second);
  }

 private:
  static bool is_leap(int64_t y) { return y % 4 == 0 && (y % 100 != 0 || y % 400 == 0); }
};

// Reads [0-9]{1,19}(\.[0-9]*)? in a unit with `per_second` units per second.
inline bool parse_unix_time(TimeReader reader, int64_t per_second, int64_t& milliseconds) {
  const int digits = reader.digits();
  int64_t value;
  if (digits < 1 || digits > 19 || !reader.number(digits, value)) return false;
  if (value < 0 || value / per_second > kEndOfTimes) return false;
  milliseconds = per_second == 1 ? value * 1000 : value / (per_second / 1000);
  if (reader.take('.')) {
    const int64_t cut = reader.milliseconds();
    if (per_second == 1) milliseconds += cut;
  }
  return reader.is_at_end();
}

// Reads YYYY-MM-DD([T ]HH:MM(:SS(\.[0-9]+)?)?(Z|[+-]HH(:?MM)?)?)?
inline bool parse_iso_time(TimeReader reader, int64_t zone_minutes, int64_t& milliseconds) {
  CivilTime time;
  int64_t fraction = 0;
  if (!reader.number(4, time.year) || !reader.take('-') || !reader.number(2, time.month) ||
      !reader.take('-') || !reader.number(2, time.day)) {
    return false;
  }
  if (!reader.is_at_end()) {
    if (!(reader.take('T') || reader.take(' ')) || !reader.number(2, time.hour) ||
        !reader.take(':') || !reader.number(2, time.minute)) {
      return false;
    }
    if (reader.take(':')) {
      if (!reader.number(2, time.second)) return false;
      if (reader.take('.')) {
        if (reader.digits() == 0) return false;
        fraction = reader.milliseconds();
      }
    }
    const bool is_west = reader.take('-');
    if (is_west || reader.take('+')) {
      int64_t hours, minutes = 0;
      if (!reader.number(2, hours) || hours > 23) return false;
      if (!reader.is_at_end()) {
        reader.take(':');
        if (!reader.number(2, minutes) || minutes > 59) return false;
      }
      zone_minutes = (is_west ? -1 : 1) * (60 * hours + minutes);
    } else if (reader.take('Z')) {
      zone_minutes = 0;
    }
  }
  if (!reader.is_at_end() || !time.is_valid()) return false;
  milliseconds = time.milliseconds() + fraction - 60000 * zone_minutes;
  return true;
}

// Reads a time in a format with directives.
inline bool parse_formatted_time(TimeReader reader, const TimeRule& rule, int64_t& milliseconds) {
  CivilTime time;
  bool has_half = false, is_afternoon = false;
  for (const char* at = rule.format; at < std::end(rule.format) && *at != 0; ++at) {
    if (*at != '%' || at + 1 == std::end(rule.format)) {
      if (!reader.take(static_cast<uint8_t>(*at))) return false;
      continue;
    }
    bool is_read;
    switch (*++at) {
      case 'Y':
        is_read = reader.number(4, time.year);
        break;
      case 'y':  // as POSIX has it
        is_read = reader.one_or_two(time.year);
        time.year += time.year < 69 ? 2000 : 1900;
        break;
      case 'm':
        is_read = reader.one_or_two(time.month);
        break;
      case 'd':
        is_read = reader.one_or_two(time.day);
        break;
      case 'H':
        is_read = reader.one_or_two(time.hour);
        break;
      case 'I':
        has_half = true;
        is_read = reader.one_or_two(time.hour) && time.hour >= 1 && time.hour <= 12;
        break;
      case 'p':
        is_read = reader.half_of_day(is_afternoon);
        break;
      case 'M':
        is_read = reader.one_or_two(time.minute);
        break;
      default:
        is_read = reader.one_or_two(time.second);
    }
    if (!is_read) return false;
  }
  if (has_half) time.hour = time.hour % 12 + (is_afternoon ? 12 : 0);
  if (!reader.is_at_end() || !time.is_valid()) return false;
  milliseconds = time.milliseconds() - int64_t{60000} * rule.zone_minutes;
  return true;
}

// Reads a time; returns whether it is valid and from 1970 to 2199.
inline bool parse_time(const uint8_t* field, uint32_t length, const TimeRule& rule,
                       int64_t& milliseconds) {
  static constexpr struct {
    const char* name;
    int64_t per_second;
  } kUnits[] = {{"unix_s", 1}, {"unix_ms", 1000}, {"unix_us", 1000000}, {"unix_ns", 1000000000}};
  const TimeReader reader(field, length);
  const auto is_format = [&](const char* name) {
    return std::strncmp(rule.format, name, sizeof(rule.format)) == 0;
  };
  const auto* const unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                        [&](const auto& each) { return is_format(each.name); });
  bool is_time;
  if (unit != std::end(kUnits)) {
    is_time = parse_unix_time(reader, unit->per_second, milliseconds);
  } else if (is_format("iso8601")) {
    is_time = parse_iso_time(reader, rule.zone_minutes, milliseconds);
  } else {
    is_time = parse_formatted_time(reader, rule, milliseconds);
  }
  return is_time && milliseconds >= 0 && milliseconds < kEndOfTimes;
}

// A feature of a time as a category: the hour, the weekday (0 is Monday), or whether it is Saturday
// or Sunday.
inline uint32_t time_feature(int64_t milliseconds, const TimeRule& rule, TimeFeature feature) {
  // Zones are less than a day, so adding a week keeps the sum positive. 1970 began on a Thursday.
  const int64_t local = milliseconds + int64_t{60000} * rule.zone_minutes + 7 * kDayMs;
  const auto weekday = static_cast<uint32_t>((local / kDayMs + 3) % 7);
  switch (feature) {
    case kHour:
      return static_cast<uint32_t>(local / 3600000 % 24);
    case kWeekday:
      return weekday;
    default:
      return weekday >= 5;
  }
}

}  // namespace clicks
