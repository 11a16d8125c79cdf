// JSON as text: a strict reader that knows line numbers, and a writer whose output is always valid JSON.
//
// Where this stands: the bottom of apps/training/; configuration, metrics and run state are read and written with it.
// Strict means: no comments, no trailing commas, no duplicate keys, no NaN, valid UTF-8, numbers in range; integers are
// exact up to 64 bits. The writer turns a number that is not finite into null.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace polygrad {

class JsonValue {
 public:
  enum class Kind : std::uint8_t { null, boolean, integer, real, text, list, object };
  using Member = std::pair<std::string, JsonValue>;

  JsonValue() = default;  // null
  static JsonValue boolean(bool value);
  static JsonValue integer(std::int64_t value);
  static JsonValue unsigned_integer(std::uint64_t value);
  static JsonValue real(double value);  // not finite: null
  static JsonValue text(std::string value);
  static JsonValue list(std::vector<JsonValue> items = {});
  static JsonValue object(std::vector<Member> members = {});

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::null; }
  bool is_number() const { return kind_ == Kind::integer || kind_ == Kind::real; }
  int line() const { return line_; }  // where it begins in its file; 0 where it was not read from one
  void set_line(int line) { line_ = line; }

  // The value as a type; ValueError where it is of another kind or (integers) out of range. A whole-numbered real such
  // as 1e3 is an integer too.
  bool as_bool() const;
  std::int64_t as_int() const;
  std::uint64_t as_uint() const;
  double as_double() const;  // null: NaN, so that a logged NaN comes back as one
  const std::string& as_text() const;
  const std::vector<JsonValue>& items() const;  // of a list
  const std::vector<Member>& members() const;   // of an object, in the order of the text
  std::vector<JsonValue>& items();
  std::vector<Member>& members();
  // A member of an object, or null where there is none.
  const JsonValue* find(std::string_view key) const;
  // Adds or replaces a member; the value must be an object.
  void set(std::string_view key, JsonValue value);

  // Without spaces, on one line; or indented by two spaces a level, short lists on one line.
  std::string dump() const;
  std::string dump_pretty() const;

  bool operator==(const JsonValue& other) const;  // the line does not count; 1 and 1.0 are equal

 private:
  Kind kind_ = Kind::null;
  bool negative_ = false;  // an integer below zero; then bits_ holds it as two's complement
  int line_ = 0;
  std::uint64_t bits_ = 0;  // boolean, integer
  double real_ = 0;
  std::string text_;
  std::vector<JsonValue> items_;
  std::vector<Member> members_;
};

// "a number", "the text \"fast\"", "a list": for messages.
std::string describe(const JsonValue& value);

// Throws ConfigError "[json] FILE:LINE: what is wrong (at key.path)". `name` is the file's name in messages.
JsonValue parse_json(std::string_view text, const std::string& name);
// The same from a file; IoError where it can't be read.
JsonValue read_json_file(const std::string& path);

// "text" with its quotes, escaped (a byte that is not UTF-8 becomes U+FFFD); and the shortest number that reads back
// equal (null where not finite).
std::string json_quoted(std::string_view text);
std::string json_number(double value);

// How many bytes the UTF-8 character at `at` has; 0 where it is not a valid one.
std::size_t utf8_bytes(std::string_view text, std::size_t at);

}  // namespace polygrad
