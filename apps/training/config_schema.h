// The one table of all configuration keys: name, type, default, meaning.
//
// Where this stands: below config.h. A new key is one row in config_schema.cpp; reading, checking, --help-config, the
// effective configuration and the refusal at a resume all follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace polygrad {

enum class KeyType : std::uint8_t {
  boolean,
  integer,  // 64 bits, within [low, high]
  seed,     // 0 ... 2^64 - 1
  number,   // within [low, high]
  text,
  choice,       // one of `choices`
  size,         // a number, [height, width], or the text "16x32"
  number_list,  // of `low` ... `high` each
  activation,   // softmax, x, x2, x^5, relu, ...; or a list with one per layer
  divisor,      // a positive number, sqrt_n, n or auto
  any_list
};

struct ConfigKey {
  const char* name;  // "optimizer.lr"
  KeyType type;
  const char* default_value;  // as JSON; "null": decided when it is used, as `help` says
  const char* choices;        // of a choice, separated by blanks
  double low, high;           // inclusive
  int count;                  // of a number_list; 0: any
  bool free_at_resume;        // may differ when a run goes on: it does not change the result
  const char* help;
  bool optional() const { return std::string_view(default_value) == "null"; }
};

const std::vector<ConfigKey>& config_keys();

// The key of that name or alias ("attention.divisor" -> attention.scale), or null.
const ConfigKey* find_config_key(std::string_view name);

// The valid key nearest to a wrong one ("" where none is near): the same last part in another section first, then the
// smallest edit distance, dashes and underscores being equal.
std::string nearest_config_key(std::string_view wrong);
// The nearest of some words, by the same rule; for flags and model names too.
std::string nearest_word(std::string_view wrong, const std::vector<std::string>& words);

// What --help-config prints: a line per key, grouped by section.
std::string config_help();

// "a number", "true or false", "one of cosine, step": what a key of this type takes, for messages.
std::string expected_value(const ConfigKey& key);

}  // namespace polygrad
