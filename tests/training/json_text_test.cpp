// The strict JSON reader and the writer: what is read back, what is refused, and the exact texts.
#include "apps/training/json_text.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/error.h"

using namespace polygrad;

namespace {

std::string error_of(const std::string& text) {
  try {
    parse_json(text, "a.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("all kinds of values are read, with their lines") {
  const JsonValue document = parse_json(
      "{\"a\": null,\n \"b\": [true, false],\n\n \"c\": {\"d\": -1.5e3},\r\n\t\"e\": "
      "\"x\\n\\u00e9\\ud83d\\ude00/\\/\"}",
      "a.json");
  CHECK(document.find("a")->is_null());
  CHECK(document.find("b")->items().at(0).as_bool());
  CHECK_FALSE(document.find("b")->items().at(1).as_bool());
  CHECK(document.find("c")->find("d")->as_double() == -1500);
  CHECK(document.find("e")->as_text() == "x\n\xC3\xA9\xF0\x9F\x98\x80//");
  CHECK(document.find("none") == nullptr);
  CHECK(document.line() == 1);
  CHECK(document.find("b")->line() == 2);
  CHECK(document.find("c")->line() == 4);
  CHECK(document.find("e")->line() == 5);
  CHECK(document.members().at(3).first == "e");
}

TEST_CASE("integers are exact to 64 bits") {
  CHECK(parse_json("18446744073709551615", "a").as_uint() == 18446744073709551615u);
  CHECK(parse_json("9007199254740993", "a").as_int() == 9007199254740993);
  CHECK(parse_json("-9223372036854775808", "a").as_int() == std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"18446744073709551615", "9007199254740993", "-9223372036854775808", "0", "-7"}) {
    CHECK(parse_json(text, "a").dump() == text);
  }
  CHECK_THROWS_WITH_AS(parse_json("18446744073709551615", "a").as_int(),
                       "[json] 18446744073709551615 is out of range; expected at most 9223372036854775807", ValueError);
  CHECK(parse_json("1e3", "a").as_int() == 1000);
  CHECK_THROWS_AS(parse_json("1.5", "a").as_int(), ValueError);
  CHECK_THROWS_AS(parse_json("-1", "a").as_uint(), ValueError);
}

TEST_CASE("numbers out of range and numbers that are none") {
  CHECK(error_of("{\"lr\": 1e400}") == "[json] a.json:1: the number 1e400 is out of range (at lr)");
  CHECK(error_of("[22e2222]") == "[json] a.json:1: the number 22e2222 is out of range (at [0])");
  CHECK(error_of("18446744073709551616") == "[json] a.json:1: the number 18446744073709551616 is out of range");
  CHECK(error_of("-9223372036854775809") == "[json] a.json:1: the number -9223372036854775809 is out of range");
  CHECK(error_of("NaN") == "[json] a.json:1: expected a value, got 'N'");
  CHECK(error_of("nan") == "[json] a.json:1: expected true, false or null");
  CHECK(error_of("-Infinity") == "[json] a.json:1: expected a value, got '-'");
  CHECK(error_of("01") == "[json] a.json:1: a number must not begin with 0");
  CHECK(error_of("1.") == "[json] a.json:1: a number needs digits after its point");
  CHECK(error_of("1e") == "[json] a.json:1: a number needs digits in its exponent");
  CHECK(error_of(".5") == "[json] a.json:1: expected a value, got '.'");
  CHECK(error_of("+1") == "[json] a.json:1: expected a value, got '+'");
}

TEST_CASE("duplicate keys, comments, trailing commas: file, line, key path") {
  CHECK(error_of("{\"model\": {\"name\": \"vit_tiny\"},\n \"model\": {}}") ==
        "[json] a.json:2: duplicate key (at model)");
  CHECK(error_of("{\"a\": {\"b\": 1,\n\"b\": 2}}") == "[json] a.json:2: duplicate key (at a.b)");
  CHECK(error_of("{\"\\u0061\": 1, \"a\": 2}") == "[json] a.json:1: duplicate key (at a)");
  CHECK(error_of("{\n// no\n}") == "[json] a.json:2: comments are not allowed in JSON");
  CHECK(error_of("[1, /* no */ 2]") == "[json] a.json:1: comments are not allowed in JSON");
  CHECK(error_of("# no\n{}") == "[json] a.json:1: comments are not allowed in JSON");
  CHECK(error_of("{\"a\": 1,}") == "[json] a.json:1: trailing comma");
  CHECK(error_of("{\"a\": [1,\n2,\n]}") == "[json] a.json:3: trailing comma (at a)");
}

TEST_CASE("structure: what was expected, what came") {
  CHECK(error_of("") == "[json] a.json:1: expected a value, got end of file");
  CHECK(error_of("{") == "[json] a.json:1: expected a key in quotes, got end of file");
  CHECK(error_of("{a: 1}") == "[json] a.json:1: expected a key in quotes, got 'a'");
  CHECK(error_of("{\"a\" 1}") == "[json] a.json:1: expected ':', got '1' (at a)");
  CHECK(error_of("{\"a\": 1 \"b\": 2}") == "[json] a.json:1: expected ',' or '}', got '\"'");
  CHECK(error_of("[1 2]") == "[json] a.json:1: expected ',' or ']', got '2'");
  CHECK(error_of("{} {}") == "[json] a.json:1: '{' after the end of the document");
  CHECK(error_of("tru") == "[json] a.json:1: expected true, false or null");
  CHECK(error_of(std::string(200, '[')).find("nested deeper than 100 levels") != std::string::npos);
  CHECK(error_of(std::string(100, '[') + std::string(100, ']')) == "no error");
}

TEST_CASE("texts: quotes, escapes, UTF-8") {
  CHECK(error_of("\"abc") == "[json] a.json:1: a text without its closing quote");
  CHECK(error_of("\"a\nb\"") == "[json] a.json:1: a text without its closing quote");
  CHECK(error_of("\"a\tb\"") == "[json] a.json:1: a control character in a text");
  CHECK(error_of("\"\\x\"") == "[json] a.json:1: unknown escape in a text");
  CHECK(error_of("\"\\") == "[json] a.json:1: unknown escape in a text");
  CHECK(error_of("\"\\u12g4\"") == "[json] a.json:1: \\u needs four hexadecimal digits");
  CHECK(error_of("\"\\ud83d\"") == "[json] a.json:1: half of a surrogate pair");
  CHECK(error_of("\"\\ude00\"") == "[json] a.json:1: half of a surrogate pair");
  for (const char* bad : {"\xFF", "\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    CHECK(error_of("\"" + std::string(bad) + "\"") == "[json] a.json:1: not valid UTF-8");
  }
  CHECK(parse_json("\xEF\xBB\xBF\"\xC3\xA9\"", "a").as_text() == "\xC3\xA9");  // a byte order mark is skipped
  CHECK(parse_json("\"\\u0000\"", "a").as_text() == std::string(1, '\0'));
}

TEST_CASE("what is written is read back equal") {
  JsonValue object = JsonValue::object();
  object.set("text", JsonValue::text("a \"quote\", \\, \n, \x01 and \xC3\xA9"));
  object.set("seed", JsonValue::unsigned_integer(18446744073709551615u));
  object.set("numbers", JsonValue::list({JsonValue::real(0.1), JsonValue::real(1e-300), JsonValue::integer(-3)}));
  object.set("empty", JsonValue::object());
  object.set("nothing", JsonValue::list());
  object.set("nested", JsonValue::list({JsonValue::list({JsonValue()}), JsonValue::boolean(true)}));
  CHECK(parse_json(object.dump(), "a") == object);
  CHECK(parse_json(object.dump_pretty(), "a") == object);
  CHECK(object.dump().find('\n') == std::string::npos);
  object.set("seed", JsonValue::integer(1));
  CHECK(object.find("seed")->as_int() == 1);
  CHECK(object.members().size() == 6);
}

TEST_CASE("numbers: the shortest text that reads back equal; not finite is null, and null reads as NaN") {
  CHECK(json_number(0.1) == "0.1");
  CHECK(json_number(2) == "2");
  CHECK(parse_json(json_number(1.0 / 3), "a").as_double() == 1.0 / 3);
  CHECK(json_number(std::numeric_limits<double>::infinity()) == "null");
  CHECK(JsonValue::real(std::nan("")).dump() == "null");
  CHECK(std::isnan(JsonValue().as_double()));
  CHECK(JsonValue::real(2) == JsonValue::integer(2));
}

TEST_CASE("a text that is not UTF-8 (a file's name) still gives valid JSON") {
  CHECK(json_quoted("a\xFFz") == "\"a\\ufffdz\"");
  CHECK(parse_json(json_quoted("a\xFFz"), "a").as_text() == "a\xEF\xBF\xBDz");
}

TEST_CASE("a value read as another kind says what it is") {
  CHECK_THROWS_WITH_AS(parse_json("\"fast\"", "a").as_double(), "[json] expected a number, got the text \"fast\"",
                       ValueError);
  CHECK_THROWS_WITH_AS(parse_json("[1]", "a").as_text(), "[json] expected a text, got a list of 1", ValueError);
  CHECK_THROWS_WITH_AS(parse_json("1.5", "a").as_bool(), "[json] expected true or false, got the number 1.5",
                       ValueError);
}
