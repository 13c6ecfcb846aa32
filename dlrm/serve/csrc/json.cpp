// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace recsys::serve {

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("the end");
    return value;
  }

 private:
  static constexpr int kDeepest = 64;

  [[noreturn]] void fail(const char* expected) const {
    throw JsonError("not JSON at byte " + std::to_string(at_) + ": expected " + expected);
  }

  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr) ++at_;
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char wanted) {
    skip_space();
    if (peek() != wanted || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json parse_value(int depth) {
    if (depth > kDeepest) fail("fewer nested values");
    skip_space();
    Json value;
    if (take('{')) {
      value.kind_ = Json::Kind::kObject;
      if (take('}')) return value;
      do {
        skip_space();
        std::string key = parse_string();
        if (!take(':')) fail("':'");
        value.members_.emplace_back(std::move(key), parse_value(depth + 1));
      } while (take(','));
      if (!take('}')) fail("',' or '}'");
    } else if (take('[')) {
      value.kind_ = Json::Kind::kArray;
      if (take(']')) return value;
      do {
        value.items_.push_back(parse_value(depth + 1));
      } while (take(','));
      if (!take(']')) fail("',' or ']'");
    } else if (peek() == '"') {
      value.kind_ = Json::Kind::kString;
      value.text_ = parse_string();
    } else if (take_word("true") || take_word("false")) {
      value.kind_ = Json::Kind::kBool;
      value.boolean_ = text_[at_ - 2] == 'u';  // tr-u-e
    } else if (!take_word("null")) {
      value.kind_ = Json::Kind::kNumber;
      value.text_ = parse_number();
    }
    return value;
  }

  std::string parse_number() {
    const size_t begin = at_;
    while (at_ < text_.size() && std::strchr("+-.0123456789eE", text_[at_]) != nullptr) ++at_;
    if (at_ == begin) fail("a value");
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::string parse_string() {
    if (peek() != '"') fail("a string");
    ++at_;
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_++];
      if (c == '\\') {
        append_escaped(result);
      } else {
        result += c;
      }
    }
    if (at_ == text_.size()) fail("'\"'");
    ++at_;
    return result;
  }

  void append_escaped(std::string& result) {
    static constexpr char kNames[] = "\"\\/bfnrt";
    static constexpr char kValues[] = "\"\\/\b\f\n\r\t";
    const char c = peek();
    const char* const name = c == '\0' ? nullptr : std::strchr(kNames, c);
    if (name != nullptr) {
      ++at_;
      result += kValues[name - kNames];
      return;
    }
    if (c != 'u' || at_ + 5 > text_.size()) fail("an escape");
    const std::string digits(text_.substr(at_ + 1, 4));
    char* end = nullptr;
    const unsigned long code = std::strtoul(digits.c_str(), &end, 16);
    if (*end != '\0') fail("four hexadecimal digits");
    at_ += 5;
    append_utf8(result, code);
  }

  // Surrogate pairs are not combined, because no name that is looked up contains them.
  static void append_utf8(std::string& result, unsigned long code) {
    if (code < 0x80) {
      result += static_cast<char>(code);
    } else if (code < 0x800) {
      result += static_cast<char>(0xc0 | code >> 6);
      result += static_cast<char>(0x80 | (code & 0x3f));
    } else {
      result += static_cast<char>(0xe0 | code >> 12);
      result += static_cast<char>(0x80 | (code >> 6 & 0x3f));
      result += static_cast<char>(0x80 | (code & 0x3f));
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

namespace {

const char* name_of(Json::Kind kind) {
  static constexpr const char* kNames[] = {"null",     "true or false", "a number",
                                           "a string", "a list",        "an object"};
  return kNames[static_cast<int>(kind)];
}

void require(Json::Kind got, Json::Kind wanted) {
  if (got != wanted) {
    throw JsonError(std::string("expected ") + name_of(wanted) + ", got " + name_of(got));
  }
}

}  // namespace

Json Json::parse(std::string_view text) { return JsonParser(text).document(); }

const Json* Json::find(std::string_view key) const {
  require(kind_, Kind::kObject);
  for (const auto& [name, value] : members_) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* const value = find(key);
  if (value == nullptr) throw JsonError("there is no '" + std::string(key) + "'");
  return *value;
}

const std::vector<std::pair<std::string, Json>>& Json::members() const {
  require(kind_, Kind::kObject);
  return members_;
}

const std::vector<Json>& Json::items() const {
  require(kind_, Kind::kArray);
  return items_;
}

const std::string& Json::string() const {
  require(kind_, Kind::kString);
  return text_;
}

bool Json::boolean() const {
  require(kind_, Kind::kBool);
  return boolean_;
}

int64_t Json::integer() const {
  require(kind_, Kind::kNumber);
  char* end = nullptr;
  errno = 0;
  const int64_t value = std::strtoll(text_.c_str(), &end, 10);
  if (*end != '\0' || errno != 0) throw JsonError("expected an integer, got " + text_);
  return value;
}

std::vector<int64_t> Json::integers() const {
  std::vector<int64_t> values;
  for (const Json& item : items()) values.push_back(item.integer());
  return values;
}

}  // namespace recsys::serve
