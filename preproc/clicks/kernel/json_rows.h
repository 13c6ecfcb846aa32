// SPDX-License-Identifier: Apache-2.0
// Splits rows that are JSON objects, one per line, to fields as preproc/files/raw/objects.py does.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "row_parser.h"

namespace clicks {

// Moves over the JSON of one line. Reads past the end hit the padding, which ends every token.
class JsonCursor {
 public:
  JsonCursor(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  const uint8_t* at() const { return at_; }
  bool is_at_end() const { return at_ == end_; }

  void skip_blanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool take(char byte) {
    skip_blanks();
    if (at_ == end_ || *at_ != static_cast<uint8_t>(byte)) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (static_cast<size_t>(end_ - at_) < word.size() ||
        std::memcmp(at_, word.data(), word.size()) != 0) {
      return false;
    }
    at_ += word.size();
    return true;
  }

  // Moves past a text; its opening quote is the next byte.
  bool skip_text() {
    for (++at_;;) {
      at_ = find_special(at_);
      if (at_ >= end_ || *at_ < 0x20) return false;
      if (*at_++ == '"') return true;
      if (at_ == end_) return false;
      if (*at_ == 'u') {
        if (end_ - at_ < 5 || !std::all_of(at_ + 1, at_ + 5, is_hexadecimal)) return false;
        at_ += 5;
      } else if (std::string_view("\"\\/bfnrt").find(static_cast<char>(*at_++)) ==
                 std::string_view::npos) {
        return false;
      }
    }
  }

  // Moves past blanks and a value; sets where the value begins. depth: depth of its container.
  bool skip_value(const uint8_t*& begin, int depth) {
    skip_blanks();
    begin = at_;
    if (at_ == end_) return false;
    switch (*at_) {
      case '"':
        return skip_text();
      case '{':
      case '[':
        return skip_container(depth + 1);
      case 't':
        return take("true");
      case 'f':
        return take("false");
      case 'n':
        return take("null");
      case 'N':
        return take("NaN");
      case 'I':
        return take("Infinity");
      default:
        return take("-Infinity") || skip_number();
    }
  }

 private:
  static constexpr int kMostDepth = 100;

  static bool is_hexadecimal(uint8_t byte) {
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'f');
  }
  // Returns the first quote, backslash or control character, or a byte behind the end.
  const uint8_t* find_special(const uint8_t* at) const {
    for (; at < end_; at += 8) {
      const uint64_t word = load64(at);
      const auto below = [](uint64_t x, uint8_t limit) { return (x - repeat(limit)) & ~x; };
      // Bytes above the first true match of each pattern may be false matches.
      const uint64_t found =
          below(word, 0x20) | below(word ^ repeat('"'), 1) | below(word ^ repeat('\\'), 1);
      if ((found & repeat(0x80)) != 0) return at + __builtin_ctzll(found & repeat(0x80)) / 8;
    }
    return at;
  }
  bool skip_digits() {
    const uint8_t* const begin = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return at_ > begin;
  }
  bool skip_number() {
    take("-");
    const bool begins_with_zero = at_ < end_ && *at_ == '0';
    const uint8_t* const begin = at_;
    if (!skip_digits() || (begins_with_zero && at_ - begin > 1)) return false;
    if (take(".") && !skip_digits()) return false;
    if (!take("e") && !take("E")) return true;
    if (!take("+")) take("-");
    return skip_digits();
  }
  bool skip_container(int depth) {
    if (depth > kMostDepth) return false;
    const bool is_object = *at_++ == '{';
    const char close = is_object ? '}' : ']';
    if (take(close)) return true;
    do {
      skip_blanks();
      const bool is_key = at_ < end_ && *at_ == '"';
      if (is_object && !(is_key && skip_text() && take(':'))) return false;
      const uint8_t* begin;
      if (!skip_value(begin, depth)) return false;
    } while (take(','));
    return take(close);
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

// Splits objects to cells by their keys. A cell is a text without its escapes, or another value as
// it is written, except that whole numbers lose their point. It is empty for null, NaN and a
// missing key.
class JsonRows {
 public:
  explicit JsonRows(const RowFormat& format) : found_(format.num_fields) {
    for (uint32_t f = 0; f < format.num_fields; ++f) names_.push_back(format.name(f));
    for (uint32_t f = 0; f < format.num_fields; ++f) fields_.emplace(names_[f], f);
  }
  JsonRows(const JsonRows&) = delete;  // `fields_` has views of `names_`
  JsonRows& operator=(const JsonRows&) = delete;

  // Like `split_rows`, but the ends are positions in `cells`.
  uint32_t split(const uint8_t* text, uint32_t size, const RowFormat& format, uint64_t& line,
                 FieldEnds& fields, std::vector<RejectedRow>& rejected) {
    fields.rows = 0;
    cells_.clear();
    const uint64_t first_line = line;
    const uint8_t* const end_of_text = text + size;
    const uint8_t* row = text;
    for (; row < end_of_text && fields.rows < kBatchRows; ++line) {
      const auto* const feed = static_cast<const uint8_t*>(memchr(row, '\n', end_of_text - row));
      const uint8_t* const end = feed - (feed > row && feed[-1] == '\r');
      const auto start = static_cast<uint32_t>(row - text);
      const auto length = static_cast<uint32_t>(end - row);
      const size_t cells = cells_.size();
      uint32_t* const ends = fields.ends + static_cast<size_t>(fields.rows) * format.num_fields;
      if (is_text(row, length) && read_object(row, end) && write_cells(format, ends)) {
        fields.start[fields.rows] = static_cast<uint32_t>(cells);
        fields.line[fields.rows] = static_cast<uint32_t>(line - first_line);
        starts_[fields.rows] = start;
        lengths_[fields.rows++] = length;
      } else {
        cells_.resize(cells);
        rejected.push_back({start, line, length, kJson, 0});
      }
      row = feed + 1;
    }
    cells_.resize(cells_.size() + kPadding);
    return static_cast<uint32_t>(row - text);
  }

  const uint8_t* cells() const { return cells_.data(); }
  // Start of a row in the text.
  uint32_t start(int r) const { return starts_[r]; }
  uint32_t length(int r) const { return lengths_[r]; }

 private:
  // The text of a value; null if the key is missing.
  struct Value {
    const uint8_t* begin = nullptr;
    const uint8_t* end = nullptr;
  };

  bool read_object(const uint8_t* begin, const uint8_t* end) {
    std::fill(found_.begin(), found_.end(), Value{});
    JsonCursor cursor(begin, end);
    if (!cursor.take('{')) return false;
    if (!cursor.take('}')) {
      do {
        cursor.skip_blanks();
        const uint8_t* const key = cursor.at();
        if (cursor.is_at_end() || *key != '"' || !cursor.skip_text()) return false;
        const auto field = field_of(key + 1, cursor.at() - 1);
        Value value;
        if (!cursor.take(':') || !cursor.skip_value(value.begin, 1)) return false;
        value.end = cursor.at();
        if (field == fields_.end()) continue;
        if (found_[field->second].begin != nullptr) return false;  // the key occurs twice
        found_[field->second] = value;
      } while (cursor.take(','));
      if (!cursor.take('}')) return false;
    }
    cursor.skip_blanks();
    return cursor.is_at_end();
  }

  using Fields = std::unordered_map<std::string_view, uint32_t>;

  Fields::const_iterator field_of(const uint8_t* begin, const uint8_t* end) {
    const auto* const text = reinterpret_cast<const char*>(begin);
    const auto size = static_cast<size_t>(end - begin);
    if (memchr(begin, '\\', size) == nullptr) return fields_.find({text, size});
    const size_t cells = cells_.size();
    append_text(begin, end);
    const auto* const key = reinterpret_cast<const char*>(cells_.data() + cells);
    const auto field = fields_.find({key, cells_.size() - cells});
    cells_.resize(cells);
    return field;
  }

  // Appends the cells of the object that was read, each followed by a byte; false if one is
  // invalid.
  bool write_cells(const RowFormat& format, uint32_t* ends) {
    for (uint32_t f = 0; f < format.num_fields; ++f) {
      const Field& declared = format.fields[f];
      const auto [begin, end] = found_[f];
      if (begin != nullptr && *begin == '[' && declared.role == kListRole) {
        if (!append_list(begin, end, static_cast<uint8_t>(declared.list.separator))) return false;
      } else if (begin != nullptr && !append_scalar(begin, end) && declared.role != kIgnored) {
        return false;
      }
      ends[f] = static_cast<uint32_t>(cells_.size());
      cells_.push_back(0);
    }
    return true;
  }

  // Appends the elements of a list, separated by the separator; false if one is invalid.
  bool append_list(const uint8_t* begin, const uint8_t* end, uint8_t separator) {
    JsonCursor cursor(begin + 1, end);
    if (cursor.take(']')) return true;
    for (;;) {
      const uint8_t* element;
      cursor.skip_value(element, 0);
      const size_t cells = cells_.size();
      if (!append_scalar(element, cursor.at()) ||
          memchr(cells_.data() + cells, separator, cells_.size() - cells) != nullptr) {
        return false;
      }
      if (!cursor.take(',')) return true;
      cells_.push_back(separator);
    }
  }

  // Appends the cell of a value; false for lists and objects.
  bool append_scalar(const uint8_t* begin, const uint8_t* end) {
    if (*begin == '[' || *begin == '{') return false;
    if (*begin == '"') {
      append_text(begin + 1, end - 1);
    } else if (*begin != 'n' && *begin != 'N') {
      const auto* const point = std::find(begin, end, '.');
      const bool is_whole =
          point < end && std::all_of(point + 1, end, [](uint8_t b) { return b == '0'; });
      if (is_whole) end = point;
      begin += is_whole && end - begin == 2 && begin[0] == '-' && begin[1] == '0';
      cells_.insert(cells_.end(), begin, end);
    }
    return true;
  }

  // Appends the contents of a text, without its quotes.
  void append_text(const uint8_t* at, const uint8_t* end) {
    while (at < end) {
      const auto* const found = static_cast<const uint8_t*>(memchr(at, '\\', end - at));
      const auto* const escape = found == nullptr ? end : found;
      cells_.insert(cells_.end(), at, escape);
      if (escape == end) return;
      at = escape + 2;
      const uint8_t letter = escape[1];
      if (letter == 'u') {
        append_point(at, end);
      } else {
        static constexpr char kLetters[] = "bfnrt", kMeant[] = "\b\f\n\r\t";
        const char* const known = std::strchr(kLetters, letter);
        cells_.push_back(known == nullptr ? letter
                                          : static_cast<uint8_t>(kMeant[known - kLetters]));
      }
    }
  }

  static uint32_t hexadecimal(const uint8_t* digits) {
    uint32_t value;
    parse_hexadecimal(digits, 4, value);
    return value;
  }

  // Appends the character of a \u escape, or of a surrogate pair. Half a pair is not valid UTF-8.
  void append_point(const uint8_t*& at, const uint8_t* end) {
    uint32_t point = hexadecimal(at);
    at += 4;
    if (point >= 0xd800 && point < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
      const uint32_t low = hexadecimal(at + 2);
      if (low >= 0xdc00 && low < 0xe000) {
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        at += 6;
      }
    }
    const int following = point >= 0x10000 ? 3 : point >= 0x800 ? 2 : point >= 0x80;
    static constexpr uint32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    cells_.push_back(static_cast<uint8_t>(kFirst[following] | point >> 6 * following));
    for (int i = following - 1; i >= 0; --i) {
      cells_.push_back(static_cast<uint8_t>(0x80 | (point >> 6 * i & 0x3f)));
    }
  }

  std::vector<std::string> names_;
  Fields fields_;
  std::vector<Value> found_;
  std::vector<uint8_t> cells_;
  uint32_t starts_[kBatchRows];
  uint32_t lengths_[kBatchRows];
};

}  // namespace clicks
