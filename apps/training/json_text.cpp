#include "apps/training/json_text.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

constexpr std::size_t kPrettyWidth = 100;

[[noreturn]] void wrong_kind(const JsonValue& value, const char* expected) {
  throw ValueError(format("[json] expected {}, got {}", expected, describe(value)));
}

bool is_plain(const JsonValue& value) {
  return value.kind() != JsonValue::Kind::object && value.kind() != JsonValue::Kind::list;
}

void write_pretty(const JsonValue& value, int indent, std::string& out) {
  const std::string inner(static_cast<std::size_t>(indent) + 2, ' '), outer(static_cast<std::size_t>(indent), ' ');
  if (value.kind() == JsonValue::Kind::object && !value.members().empty()) {
    const char* separator = "{\n";
    for (const auto& [key, member] : value.members()) {
      out += separator + inner + json_quoted(key) + ": ";
      write_pretty(member, indent + 2, out);
      separator = ",\n";
    }
    out += "\n" + outer + "}";
    return;
  }
  if (value.kind() == JsonValue::Kind::list && !value.items().empty()) {
    bool short_list = true;
    for (const JsonValue& item : value.items()) short_list = short_list && is_plain(item);
    std::string line = "[";
    for (std::size_t i = 0; short_list && i < value.items().size(); ++i) {
      line += (i == 0 ? "" : ", ") + value.items()[i].dump();
      short_list = line.size() < kPrettyWidth;
    }
    if (short_list) {
      out += line + "]";
      return;
    }
    const char* separator = "[\n";
    for (const JsonValue& item : value.items()) {
      out += separator + inner;
      write_pretty(item, indent + 2, out);
      separator = ",\n";
    }
    out += "\n" + outer + "]";
    return;
  }
  out += value.dump();
}

}  // namespace

JsonValue JsonValue::boolean(bool value) {
  JsonValue result;
  result.kind_ = Kind::boolean;
  result.bits_ = value ? 1 : 0;
  return result;
}

JsonValue JsonValue::integer(std::int64_t value) {
  JsonValue result;
  result.kind_ = Kind::integer;
  result.negative_ = value < 0;
  result.bits_ = static_cast<std::uint64_t>(value);
  return result;
}

JsonValue JsonValue::unsigned_integer(std::uint64_t value) {
  JsonValue result;
  result.kind_ = Kind::integer;
  result.bits_ = value;
  return result;
}

JsonValue JsonValue::real(double value) {
  JsonValue result;
  if (!std::isfinite(value)) return result;
  result.kind_ = Kind::real;
  result.real_ = value;
  return result;
}

JsonValue JsonValue::text(std::string value) {
  JsonValue result;
  result.kind_ = Kind::text;
  result.text_ = std::move(value);
  return result;
}

JsonValue JsonValue::list(std::vector<JsonValue> items) {
  JsonValue result;
  result.kind_ = Kind::list;
  result.items_ = std::move(items);
  return result;
}

JsonValue JsonValue::object(std::vector<Member> members) {
  JsonValue result;
  result.kind_ = Kind::object;
  result.members_ = std::move(members);
  return result;
}

bool JsonValue::as_bool() const {
  if (kind_ != Kind::boolean) wrong_kind(*this, "true or false");
  return bits_ != 0;
}

std::int64_t JsonValue::as_int() const {
  constexpr double kLimit = 0x1p63;
  if (kind_ == Kind::real && real_ == std::floor(real_) && real_ >= -kLimit && real_ < kLimit) {
    return static_cast<std::int64_t>(real_);
  }
  if (kind_ != Kind::integer) wrong_kind(*this, "a whole number");
  if (!negative_ && bits_ > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw ValueError(
        format("[json] {} is out of range; expected at most {}", bits_, std::numeric_limits<std::int64_t>::max()));
  }
  return static_cast<std::int64_t>(bits_);
}

std::uint64_t JsonValue::as_uint() const {
  constexpr double kLimit = 0x1p64;
  if (kind_ == Kind::real && real_ == std::floor(real_) && real_ >= 0 && real_ < kLimit) {
    return static_cast<std::uint64_t>(real_);
  }
  if (kind_ != Kind::integer || negative_) wrong_kind(*this, "a whole number >= 0");
  return bits_;
}

double JsonValue::as_double() const {
  if (kind_ == Kind::null) return std::numeric_limits<double>::quiet_NaN();
  if (kind_ == Kind::real) return real_;
  if (kind_ != Kind::integer) wrong_kind(*this, "a number");
  return negative_ ? static_cast<double>(static_cast<std::int64_t>(bits_)) : static_cast<double>(bits_);
}

const std::string& JsonValue::as_text() const {
  if (kind_ != Kind::text) wrong_kind(*this, "a text");
  return text_;
}

const std::vector<JsonValue>& JsonValue::items() const {
  if (kind_ != Kind::list) wrong_kind(*this, "a list");
  return items_;
}

const std::vector<JsonValue::Member>& JsonValue::members() const {
  if (kind_ != Kind::object) wrong_kind(*this, "an object");
  return members_;
}

std::vector<JsonValue>& JsonValue::items() {
  if (kind_ != Kind::list) wrong_kind(*this, "a list");
  return items_;
}

std::vector<JsonValue::Member>& JsonValue::members() {
  if (kind_ != Kind::object) wrong_kind(*this, "an object");
  return members_;
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const Member& member : members()) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

void JsonValue::set(std::string_view key, JsonValue value) {
  for (Member& member : members()) {
    if (member.first == key) {
      member.second = std::move(value);
      return;
    }
  }
  members_.emplace_back(std::string(key), std::move(value));
}

std::string JsonValue::dump() const {
  switch (kind_) {
    case Kind::null:
      return "null";
    case Kind::boolean:
      return bits_ != 0 ? "true" : "false";
    case Kind::integer:
      return negative_ ? std::to_string(static_cast<std::int64_t>(bits_)) : std::to_string(bits_);
    case Kind::real:
      return json_number(real_);
    case Kind::text:
      return json_quoted(text_);
    case Kind::list: {
      std::string out = "[";
      for (const JsonValue& item : items_) out += (out.size() > 1 ? "," : "") + item.dump();
      return out + "]";
    }
    case Kind::object: {
      std::string out = "{";
      for (const auto& [key, value] : members_) {
        out += (out.size() > 1 ? "," : "") + json_quoted(key) + ":" + value.dump();
      }
      return out + "}";
    }
  }
  throw InternalError("[json] a value of no kind");
}

std::string JsonValue::dump_pretty() const {
  std::string out;
  write_pretty(*this, 0, out);
  return out + "\n";
}

bool JsonValue::operator==(const JsonValue& other) const {
  if (is_number() && other.is_number()) {
    if (kind_ == other.kind_) {
      return kind_ == Kind::real ? real_ == other.real_ : bits_ == other.bits_ && negative_ == other.negative_;
    }
    return as_double() == other.as_double();
  }
  return kind_ == other.kind_ && bits_ == other.bits_ && text_ == other.text_ && items_ == other.items_ &&
         members_ == other.members_;
}

std::string describe(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return value.dump();
    case JsonValue::Kind::integer:
    case JsonValue::Kind::real:
      return format("the number {}", value.dump());
    case JsonValue::Kind::text:
      return format("the text {}", value.dump());
    case JsonValue::Kind::list:
      return format("a list of {}", value.items().size());
    case JsonValue::Kind::object:
      return "an object";
  }
  return "";
}

std::size_t utf8_bytes(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return 1;
  const unsigned extra = lead >= 0xC2 && lead <= 0xDF   ? 1
                         : (lead & 0xF0) == 0xE0        ? 2
                         : lead >= 0xF0 && lead <= 0xF4 ? 3
                                                        : 0;
  if (extra == 0 || at + extra >= text.size()) return 0;
  unsigned code = lead & (0x3Fu >> extra);
  for (unsigned i = 1; i <= extra; ++i) {
    const auto c = static_cast<unsigned char>(text[at + i]);
    if ((c & 0xC0) != 0x80) return 0;
    code = (code << 6) | (c & 0x3Fu);
  }
  constexpr unsigned kSmallest[] = {0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[extra] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return 0;
  return extra + 1;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const std::size_t bytes = utf8_bytes(text, at);
    constexpr std::string_view kSpecial = "\"\\\n\r\t", kLetters = "\"\\nrt";
    const std::size_t special = kSpecial.find(c);
    if (special != std::string_view::npos) {
      out += '\\';
      out += kLetters[special];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (bytes == 0) {
      out += "\\ufffd";
    } else {
      out += text.substr(at, bytes);
    }
    at += bytes == 0 ? 1 : bytes;
  }
  return out + "\"";
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

}  // namespace polygrad
