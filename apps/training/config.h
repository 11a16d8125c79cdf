// Config: the configuration of one run. Defaults, then a file or preset, then --set key=value.
//
// Where this stands: above config_schema.h (the table of keys); the programs make one, the trainer reads it.
// A value is checked when it is set: every key read later exists and has its type. Read next: config_schema.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/training/json_text.h"

namespace polygrad {

struct ConfigDifference {
  std::string key, old_value, new_value;  // values as JSON
};

class Config {
 public:
  Config();  // all defaults; name "default"

  // `file` is a path, or the bare name of a preset (presets.h). Throws ConfigError: no such file; else with file,
  // line, key path and, for an unknown key, the nearest valid one.
  static Config from_file(const std::string& file);
  // `name` stands in messages, its stem is the configuration's name.
  static Config from_text(std::string_view text, const std::string& name);

  // "optimizer.lr=3e-4": JSON, or a bare word (16x32, sqrt_n, x^5) or bare list (x,x3 or [x, x3]). A key set twice has
  // the last value. Throws ConfigError naming the assignment.
  void set(std::string_view assignment);
  // The same for a value that a flag gives (--data DIR): `origin` stands in messages.
  void set_value(std::string_view key, const JsonValue& value, const std::string& origin);

  // --- reading; an unknown key or a wrong type is an InternalError -------------------------------------------------
  bool is_null(std::string_view key) const;  // left open: the data or the model decides
  bool flag(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  std::uint64_t seed(std::string_view key) const;
  double number(std::string_view key) const;
  const std::string& text(std::string_view key) const;  // texts and choices
  std::vector<double> numbers(std::string_view key) const;
  std::pair<std::int64_t, std::int64_t> size(std::string_view key) const;  // (height, width)
  std::vector<std::string> activations(std::string_view key) const;        // one, or one per layer
  std::string divisor(std::string_view key) const;  // as resolve_divisor takes it: "16", "sqrt_n", ...
  const JsonValue& value(std::string_view key) const;
  // With a fallback for a key that is null.
  std::int64_t integer_or(std::string_view key, std::int64_t fallback) const;
  double number_or(std::string_view key, double fallback) const;
  bool flag_or(std::string_view key, bool fallback) const;
  // Takes over every key that `other` was given, and its name: a file on top of a preset.
  void overlay(const Config& other);
  // Given by a file or --set, rather than a default.
  bool is_set(std::string_view key) const;

  const std::string& name() const { return name_; }  // the file's stem; the default run folder is runs/<name>
  // The effective configuration: all keys, in the table's order, nulls too; reading it back gives an equal Config.
  std::string json() const;
  JsonValue as_json() const;

 private:
  std::size_t index(std::string_view key) const;
  void read_section(const JsonValue& object, const std::string& prefix, const std::string& file);
  std::string name_;
  std::vector<JsonValue> values_;  // in the table's order
  std::vector<bool> set_;
};

// Keys whose values differ, in the table's order; keys that may change at a resume are left out. Texts of JSON values.
std::vector<ConfigDifference> config_differences(const Config& old_config, const Config& new_config);
// Those not permitted by `allowed` (keys of --allow-change); ConfigError for a word that is no key.
std::vector<ConfigDifference> without_allowed(std::vector<ConfigDifference> differences,
                                              const std::vector<std::string>& allowed);
// "optimizer.lr: 0.001 -> 0.002; train.epochs: 10 -> 20"
std::string describe(const std::vector<ConfigDifference>& differences);

// The augmentation that preset and single switches come to. Throws ConfigError where crop_scale is no range.
struct AugmentSettings {
  bool flip = false;
  std::int64_t crop_padding = 0;
  double mixup = 0, cutmix = 0;
  bool resized_crop = false;
  std::array<double, 2> crop_scale = {0.08, 1};
  bool randaugment = false;
  double random_erasing = 0;
  std::int64_t repeated = 1;
};
AugmentSettings augment_settings(const Config& config);

}  // namespace polygrad
