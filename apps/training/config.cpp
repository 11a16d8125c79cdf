#include "apps/training/config.h"

#include <algorithm>
#include <cmath>

#include "apps/training/config_schema.h"
#include "apps/training/presets.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "ops/attention.h"

namespace polygrad {

namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 24;

bool in_range(const ConfigKey& key, double value) { return value >= key.low && value <= key.high; }

bool is_one_of(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const std::size_t blank = choices.find(' ');
    if (choices.substr(0, blank) == word) return true;
    choices = blank == std::string_view::npos ? std::string_view{} : choices.substr(blank + 1);
  }
  return false;
}

bool is_whole(const JsonValue& value) {
  return value.kind() == Kind::integer ||
         (value.kind() == Kind::real && std::floor(value.as_double()) == value.as_double());
}

// "16x32" -> {16, 32}; else empty.
std::vector<JsonValue> parse_size(const std::string& text) {
  std::vector<JsonValue> sides;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    const std::string digits = text.substr(begin, end - begin);
    if (digits.empty() || digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos) return {};
    sides.push_back(JsonValue::integer(std::stoll(digits)));
    begin = end + 1;
  }
  return sides;
}

// Each of these gives the value in its one normal form, or nothing where it is not what the key takes.
using Checked = std::vector<JsonValue>;  // empty or one

Checked check_size(const JsonValue& value) {
  std::vector<JsonValue> sides;
  if (value.is_number()) sides = {value, value};
  if (value.kind() == Kind::list) sides = value.items();
  if (value.kind() == Kind::text) sides = parse_size(value.as_text());
  if (sides.size() == 1) sides.push_back(sides.front());
  if (sides.size() != 2) return {};
  for (JsonValue& side : sides) {
    if (!is_whole(side) || side.as_double() < 1 || side.as_double() > 1e9) return {};
    side = JsonValue::integer(side.as_int());
  }
  return {JsonValue::list(sides)};
}

Checked check_activation(const JsonValue& value) {
  if (value.kind() == Kind::text) return {JsonValue::text(to_string(parse_activation(value.as_text())))};
  if (value.kind() != Kind::list || value.items().empty()) return {};
  std::vector<JsonValue> layers;
  for (const JsonValue& item : value.items()) {
    if (item.kind() != Kind::text) return {};
    layers.push_back(JsonValue::text(to_string(parse_activation(item.as_text()))));
  }
  return {JsonValue::list(layers)};
}

Checked check_divisor(const JsonValue& value) {
  if (value.is_number() && value.as_double() > 0) return {JsonValue::real(value.as_double())};
  if (value.kind() == Kind::text && is_one_of(value.as_text(), "auto sqrt_n n")) return {value};
  return {};
}

Checked check_number_list(const ConfigKey& key, const JsonValue& value) {
  if (value.kind() != Kind::list) return {};
  if (key.count > 0 && static_cast<int>(value.items().size()) != key.count) return {};
  for (const JsonValue& item : value.items()) {
    if (!item.is_number() || !in_range(key, item.as_double())) return {};
  }
  return {value};
}

Checked check_value(const ConfigKey& key, const JsonValue& value) {
  if (value.is_null()) return key.optional() ? Checked{value} : Checked{};
  const auto if_true = [&](bool good) { return good ? Checked{value} : Checked{}; };
  switch (key.type) {
    case KeyType::boolean:
      return if_true(value.kind() == Kind::boolean);
    case KeyType::integer:
      if (!is_whole(value) || !in_range(key, value.as_double()) || std::abs(value.as_double()) >= 0x1p63) return {};
      return {JsonValue::integer(value.as_int())};
    case KeyType::seed:
      if (!is_whole(value) || value.as_double() < 0 || (value.kind() == Kind::real && value.as_double() >= 0x1p64)) {
        return {};
      }
      return {JsonValue::unsigned_integer(value.as_uint())};
    case KeyType::number:
      return if_true(value.is_number() && in_range(key, value.as_double()));
    case KeyType::text:
      return if_true(value.kind() == Kind::text);
    case KeyType::choice:
      return if_true(value.kind() == Kind::text && is_one_of(value.as_text(), key.choices));
    case KeyType::size:
      return check_size(value);
    case KeyType::number_list:
      return check_number_list(key, value);
    case KeyType::activation:
      return check_activation(value);
    case KeyType::divisor:
      return check_divisor(value);
    case KeyType::any_list:
      return if_true(value.kind() == Kind::list);
  }
  return {};
}

// The normal form, or ConfigError with the place, the key and what it takes.
JsonValue checked_value(const ConfigKey& key, const JsonValue& value, const std::string& origin) {
  Checked checked;
  try {
    checked = check_value(key, value);
  } catch (const ConfigError&) {  // parse_activation: the text below names what is allowed, and where
  }
  if (checked.empty()) {
    constexpr std::size_t kShort = 60;
    // Of a short list, its members: one of them may be what is wrong.
    const bool is_list = key.type == KeyType::number_list && value.kind() == Kind::list;
    const std::string got = is_list && value.dump().size() <= kShort ? value.dump() : describe(value);
    throw ConfigError(format("[config] {}: {}: expected {}, got {}", origin, key.name, expected_value(key), got));
  }
  return checked.front();
}

bool is_section(const std::string& name) {
  for (const ConfigKey& key : config_keys()) {
    if (std::string_view(key.name).substr(0, name.size() + 1) == name + ".") return true;
  }
  return false;
}

[[noreturn]] void unknown_key(const std::string& key, const std::string& origin) {
  if (is_section(key)) {
    throw ConfigError(format("[config] {}: {} is a section; expected one of its keys, SECTION.KEY", origin, key));
  }
  const std::string near = nearest_config_key(key);
  throw ConfigError(near.empty() ? format("[config] {}: unknown key {}; --help-config lists all", origin, key)
                                 : format("[config] {}: unknown key {}; did you mean {}?", origin, key, near));
}

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t") - first + 1));
}

// JSON where it is; else a bare word. The reader's own complaint about a number out of range is kept.
JsonValue parse_scalar(const std::string& text, const std::string& origin) {
  try {
    return parse_json(text, origin);
  } catch (const ConfigError& error) {
    if (std::string_view(error.what()).find("out of range") != std::string_view::npos) throw;
    return JsonValue::text(text);
  }
}

// The value of --set key=value.
JsonValue parse_assigned(const ConfigKey& key, const std::string& text, const std::string& origin) {
  const JsonValue value = parse_scalar(text, origin);
  const bool is_json_text = !text.empty() && text.front() == '"';
  if (key.type == KeyType::text && !is_json_text && !value.is_null()) return JsonValue::text(text);
  const bool takes_list = key.type == KeyType::number_list || key.type == KeyType::activation ||
                          key.type == KeyType::size || key.type == KeyType::any_list;
  const bool bracketed = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  if (!takes_list || is_json_text || value.kind() != Kind::text) return value;
  if (!bracketed && text.find(',') == std::string::npos) return value;
  // A bare list.
  std::string_view rest(text);
  if (bracketed) rest = rest.substr(1, rest.size() - 2);
  std::vector<JsonValue> items;
  while (true) {
    const std::size_t comma = rest.find(',');
    items.push_back(parse_scalar(trimmed(rest.substr(0, comma)), origin));
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
  return JsonValue::list(std::move(items));
}

std::string stem(const std::string& file) {
  std::string name = file.substr(file.find_last_of('/') + 1);
  const std::size_t dot = name.find_last_of('.');
  return dot == std::string::npos || dot == 0 ? name : name.substr(0, dot);
}

}  // namespace

Config::Config() : name_("default") {
  for (const ConfigKey& key : config_keys()) {
    values_.push_back(checked_value(key, parse_json(key.default_value, key.name), "default"));
  }
  set_.assign(values_.size(), false);
}

Config Config::from_file(const std::string& file) {
  const std::string path = find_config_file(file);
  std::string text;
  try {
    text = read_file(path, kMaxConfigBytes);
  } catch (const IoError& error) {
    throw ConfigError(format("[config] {}", error.what()));
  }
  return from_text(text, path);
}

Config Config::from_text(std::string_view text, const std::string& name) {
  Config config;
  config.name_ = stem(name);
  const JsonValue document = parse_json(text, name);
  if (document.kind() != Kind::object) {
    throw ConfigError(format("[config] {}:{}: expected an object, got {}", name, document.line(), describe(document)));
  }
  config.read_section(document, "", name);
  return config;
}

void Config::read_section(const JsonValue& object, const std::string& prefix, const std::string& file) {
  for (const auto& [word, value] : object.members()) {
    const std::string path = prefix.empty() ? word : prefix + "." + word;
    const std::string origin = format("{}:{}", file, value.line());
    const ConfigKey* key = word.find('.') == std::string::npos ? find_config_key(path) : nullptr;
    if (key != nullptr) {
      if (is_set(key->name)) {
        throw ConfigError(format("[config] {}: {} is given twice (as {} here)", origin, key->name, path));
      }
      set_value(path, value, origin);
    } else if (prefix.empty() && is_section(word)) {
      if (value.kind() != Kind::object) {
        throw ConfigError(
            format("[config] {}: {} is a section; expected an object, got {}", origin, word, describe(value)));
      }
      read_section(value, word, file);
    } else if (prefix.empty() && value.kind() == Kind::object && !value.members().empty()) {
      read_section(value, word, file);  // an unknown section: its first key tells which one was meant
    } else {
      unknown_key(path, origin);
    }
  }
}

void Config::set(std::string_view assignment) {
  const std::string origin = format("--set {}", assignment);
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError(format("[config] {}: expected key=value", origin));
  }
  const std::string name = trimmed(assignment.substr(0, equals));
  const ConfigKey* key = find_config_key(name);
  if (key == nullptr) unknown_key(name, origin);
  set_value(name, parse_assigned(*key, trimmed(assignment.substr(equals + 1)), origin), origin);
}

void Config::set_value(std::string_view name, const JsonValue& value, const std::string& origin) {
  const ConfigKey* key = find_config_key(name);
  if (key == nullptr) unknown_key(std::string(name), origin);
  JsonValue checked = checked_value(*key, value, origin);
  const std::size_t at = index(key->name);
  values_[at] = std::move(checked);
  set_[at] = true;
}

void Config::overlay(const Config& other) {
  name_ = other.name_;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!other.set_[i]) continue;
    values_[i] = other.values_[i];
    set_[i] = true;
  }
}

std::size_t Config::index(std::string_view name) const {
  const ConfigKey* key = find_config_key(name);
  if (key == nullptr) throw InternalError(format("[config] there is no key {}", name));
  return static_cast<std::size_t>(key - config_keys().data());
}

const JsonValue& Config::value(std::string_view key) const { return values_[index(key)]; }

bool Config::is_null(std::string_view key) const { return value(key).is_null(); }

bool Config::is_set(std::string_view key) const { return set_[index(key)]; }

namespace {

// A key read as another type than its own is a mistake of the program.
template <class Read>
auto read_as(std::string_view key, const JsonValue& value, Read read) {
  try {
    return read(value);
  } catch (const ValueError& error) {
    throw InternalError(format("[config] {} read as another type: {}", key, error.what()));
  }
}

}  // namespace

bool Config::flag(std::string_view key) const {
  return read_as(key, value(key), [](const JsonValue& v) { return v.as_bool(); });
}

std::int64_t Config::integer(std::string_view key) const {
  return read_as(key, value(key), [](const JsonValue& v) { return v.as_int(); });
}

std::uint64_t Config::seed(std::string_view key) const {
  return read_as(key, value(key), [](const JsonValue& v) { return v.as_uint(); });
}

double Config::number(std::string_view key) const {
  if (is_null(key)) throw InternalError(format("[config] {} is null where a number is read", key));
  return read_as(key, value(key), [](const JsonValue& v) { return v.as_double(); });
}

const std::string& Config::text(std::string_view key) const {
  const JsonValue& found = value(key);
  if (found.kind() != Kind::text) throw InternalError(format("[config] {} is {}, not a text", key, describe(found)));
  return found.as_text();
}

std::vector<double> Config::numbers(std::string_view key) const {
  return read_as(key, value(key), [](const JsonValue& v) {
    std::vector<double> numbers;
    for (const JsonValue& item : v.items()) numbers.push_back(item.as_double());
    return numbers;
  });
}

std::pair<std::int64_t, std::int64_t> Config::size(std::string_view key) const {
  return read_as(key, value(key),
                 [](const JsonValue& v) { return std::pair(v.items().at(0).as_int(), v.items().at(1).as_int()); });
}

std::vector<std::string> Config::activations(std::string_view key) const {
  return read_as(key, value(key), [](const JsonValue& v) {
    if (v.kind() == Kind::text) return std::vector<std::string>{v.as_text()};
    std::vector<std::string> layers;
    for (const JsonValue& item : v.items()) layers.push_back(item.as_text());
    return layers;
  });
}

std::string Config::divisor(std::string_view key) const {
  const JsonValue& found = value(key);
  return found.kind() == Kind::text ? found.as_text() : json_number(found.as_double());
}

std::int64_t Config::integer_or(std::string_view key, std::int64_t fallback) const {
  return is_null(key) ? fallback : integer(key);
}

double Config::number_or(std::string_view key, double fallback) const { return is_null(key) ? fallback : number(key); }

bool Config::flag_or(std::string_view key, bool fallback) const { return is_null(key) ? fallback : flag(key); }

JsonValue Config::as_json() const {
  JsonValue document = JsonValue::object();
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const std::string name = config_keys()[i].name;
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) {
      document.set(name, values_[i]);
      continue;
    }
    const std::string section = name.substr(0, dot);
    if (document.find(section) == nullptr) document.set(section, JsonValue::object());
    for (auto& [key, value] : document.members()) {
      if (key == section) value.set(name.substr(dot + 1), values_[i]);
    }
  }
  return document;
}

std::string Config::json() const { return as_json().dump_pretty(); }

std::vector<ConfigDifference> config_differences(const Config& old_config, const Config& new_config) {
  std::vector<ConfigDifference> differences;
  for (const ConfigKey& key : config_keys()) {
    if (key.free_at_resume) continue;
    const JsonValue &before = old_config.value(key.name), &now = new_config.value(key.name);
    if (!(before == now)) differences.push_back({key.name, before.dump(), now.dump()});
  }
  return differences;
}

std::vector<ConfigDifference> without_allowed(std::vector<ConfigDifference> differences,
                                              const std::vector<std::string>& allowed) {
  for (const std::string& word : allowed) {
    const ConfigKey* key = find_config_key(word);
    if (key == nullptr) unknown_key(word, format("--allow-change {}", word));
    const auto is_allowed = [&](const ConfigDifference& difference) { return difference.key == key->name; };
    differences.erase(std::remove_if(differences.begin(), differences.end(), is_allowed), differences.end());
  }
  return differences;
}

std::string describe(const std::vector<ConfigDifference>& differences) {
  std::string text;
  for (const ConfigDifference& difference : differences) {
    text +=
        format("{}{}: {} -> {}", text.empty() ? "" : "; ", difference.key, difference.old_value, difference.new_value);
  }
  return text;
}

AugmentSettings augment_settings(const Config& config) {
  const std::string& preset = config.text("augment.preset");
  const bool light = preset == "light", full = preset == "full";
  AugmentSettings settings;
  settings.flip = config.flag_or("augment.flip", light || full);
  settings.crop_padding = config.integer_or("augment.crop_padding", light ? 4 : 0);
  settings.mixup = config.number_or("augment.mixup", full ? 0.8 : 0);
  settings.cutmix = config.number_or("augment.cutmix", full ? 1.0 : 0);
  settings.resized_crop = config.flag_or("augment.resized_crop", full);
  settings.randaugment = config.flag_or("augment.randaugment", full);
  settings.random_erasing = config.number_or("augment.random_erasing", full ? 0.25 : 0);
  settings.repeated = config.integer_or("augment.repeated", 1);
  const std::vector<double> scale = config.numbers("augment.crop_scale");
  settings.crop_scale = {scale.at(0), scale.at(1)};
  if (scale[0] > scale[1]) {
    throw ConfigError(
        format("[config] augment.crop_scale: [{}, {}]; expected the smaller share first", scale[0], scale[1]));
  }
  return settings;
}

}  // namespace polygrad
