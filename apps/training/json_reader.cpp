// The reader of json_text.h: one pass over the text, one function per kind of value.
#include <charconv>
#include <set>

#include "apps/training/json_text.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxJsonBytes = std::size_t{1} << 28;

// A recursive-descent reader over the text; `path_` is the key path it is at, for messages.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text_.substr(0, 3) == kByteOrderMark) at_ = 3;
  }

  JsonValue document() {
    JsonValue value = read_value(0);
    skip_blanks();
    if (at_ < text_.size()) fail(format("{} after the end of the document", here()));
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { fail_at(line_, what); }
  [[noreturn]] void fail_at(int line, const std::string& what) const {
    throw ConfigError(format("[json] {}:{}: {}{}", name_, line, what, path_.empty() ? "" : format(" (at {})", path_)));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // What stands at the current place, for messages.
  std::string here() const {
    if (at_ >= text_.size()) return "end of file";
    const auto c = static_cast<unsigned char>(text_[at_]);
    return c < 0x20 || c >= 0x7F ? format("byte 0x{:02x}", c) : format("'{}'", text_[at_]);
  }

  void skip_blanks() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        break;
      }
    }
    if (peek() == '/' || peek() == '#') fail("comments are not allowed in JSON");
  }

  JsonValue read_value(int depth) {
    if (depth > kMaxDepth) fail(format("nested deeper than {} levels", kMaxDepth));
    skip_blanks();
    const int line = line_;
    JsonValue value;
    switch (peek()) {
      case '{':
        value = read_object(depth);
        break;
      case '[':
        value = read_list(depth);
        break;
      case '"':
        value = JsonValue::text(read_string());
        break;
      case 't':
      case 'f':
      case 'n':
        value = read_word();
        break;
      default:
        value = read_number();
    }
    value.set_line(line);
    return value;
  }

  JsonValue read_word() {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return word == "null" ? JsonValue() : JsonValue::boolean(word == "true");
    }
    fail("expected true, false or null");
  }

  JsonValue read_object(int depth) {
    ++at_;
    std::vector<JsonValue::Member> members;
    std::set<std::string, std::less<>> seen;
    skip_blanks();
    while (peek() != '}') {
      if (!members.empty()) {
        expect(',', "',' or '}'");
        skip_blanks();
        if (peek() == '}') fail("trailing comma");
      }
      if (peek() != '"') fail(format("expected a key in quotes, got {}", here()));
      std::string key = read_string();
      const std::size_t outer = path_.size();
      path_ += (path_.empty() ? "" : ".") + key;
      if (!seen.insert(key).second) fail("duplicate key");
      skip_blanks();
      expect(':', "':'");
      JsonValue value = read_value(depth + 1);
      path_.resize(outer);
      members.emplace_back(std::move(key), std::move(value));
      skip_blanks();
    }
    ++at_;
    return JsonValue::object(std::move(members));
  }

  JsonValue read_list(int depth) {
    ++at_;
    std::vector<JsonValue> items;
    skip_blanks();
    while (peek() != ']') {
      if (!items.empty()) {
        expect(',', "',' or ']'");
        skip_blanks();
        if (peek() == ']') fail("trailing comma");
      }
      const std::size_t outer = path_.size();
      path_ += format("[{}]", items.size());
      items.push_back(read_value(depth + 1));
      path_.resize(outer);
      skip_blanks();
    }
    ++at_;
    return JsonValue::list(std::move(items));
  }

  void expect(char c, const char* what) {
    if (peek() != c || at_ >= text_.size()) fail(format("expected {}, got {}", what, here()));
    ++at_;
  }

  unsigned read_hex4() {
    unsigned value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                             : c >= 'a' && c <= 'f' ? static_cast<unsigned>(c - 'a') + 10
                             : c >= 'A' && c <= 'F' ? static_cast<unsigned>(c - 'A') + 10
                                                    : 16;
      if (digit == 16) fail("\\u needs four hexadecimal digits");
      value = value * 16 + digit;
    }
    return value;
  }

  static void append_utf8(std::string& to, unsigned code) {
    if (code < 0x80) {
      to += static_cast<char>(code);
      return;
    }
    const int extra = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
    to += static_cast<char>(kLead[extra] | (code >> (6 * extra)));
    for (int i = extra - 1; i >= 0; --i) to += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  }

  // The character of a \uXXXX (its `\u` is read already), with its second half where it is a surrogate pair.
  unsigned read_escaped_code() {
    const unsigned first = read_hex4();
    if (first < 0xD800 || first > 0xDFFF) return first;
    if (first <= 0xDBFF && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const unsigned second = read_hex4();
      if (second >= 0xDC00 && second <= 0xDFFF) return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }
    fail("half of a surrogate pair");
  }

  std::string read_string() {
    const int line = line_;
    std::string result;
    for (++at_; peek() != '"';) {
      if (at_ >= text_.size()) fail_at(line, "a text without its closing quote");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c >= 0x80) {
        const std::size_t bytes = utf8_bytes(text_, at_);
        if (bytes == 0) fail("not valid UTF-8");
        result.append(text_.substr(at_, bytes));
        at_ += bytes;
        continue;
      }
      if (c < 0x20) fail(c == '\n' ? "a text without its closing quote" : "a control character in a text");
      ++at_;
      if (c != '\\') {
        result += static_cast<char>(c);
        continue;
      }
      const char escape = peek();
      constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
      const std::size_t found = kEscapes.find(escape);
      if (escape == 'u') {
        ++at_;
        append_utf8(result, read_escaped_code());
      } else if (at_ < text_.size() && found != std::string_view::npos) {
        result += kMeanings[found];
        ++at_;
      } else {
        fail("unknown escape in a text");
      }
    }
    ++at_;
    return result;
  }

  std::size_t skip_digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - begin;
  }

  JsonValue read_number() {
    const std::size_t begin = at_;
    const bool negative = peek() == '-';
    if (negative) ++at_;
    const bool zero = peek() == '0';
    const std::size_t digits = skip_digits();
    if (digits == 0) {
      at_ = begin;
      fail(format("expected a value, got {}", here()));
    }
    if (zero && digits > 1) fail("a number must not begin with 0");
    bool whole = true;
    if (peek() == '.') {
      whole = false;
      ++at_;
      if (skip_digits() == 0) fail("a number needs digits after its point");
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (skip_digits() == 0) fail("a number needs digits in its exponent");
    }
    const std::string_view token = text_.substr(begin, at_ - begin);
    const char* first = token.data();
    const char* last = first + token.size();
    if (whole && negative) {
      std::int64_t value = 0;
      if (std::from_chars(first, last, value).ec == std::errc()) return JsonValue::integer(value);
    } else if (whole) {
      std::uint64_t value = 0;
      if (std::from_chars(first, last, value).ec == std::errc()) return JsonValue::unsigned_integer(value);
    } else {
      double value = 0;
      if (std::from_chars(first, last, value).ec == std::errc()) return JsonValue::real(value);
    }
    fail(format("the number {} is out of range", token));
  }

  std::string_view text_;
  std::string name_, path_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

JsonValue parse_json(std::string_view text, const std::string& name) { return Reader(text, name).document(); }

JsonValue read_json_file(const std::string& path) { return parse_json(read_file(path, kMaxJsonBytes), path); }

}  // namespace polygrad
