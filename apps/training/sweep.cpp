#include "apps/training/sweep.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "apps/training/config_schema.h"
#include "apps/training/experiment.h"
#include "apps/training/presets.h"
#include "apps/training/sweep_results.h"
#include "apps/training/trainer.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace fs = std::filesystem;

namespace {

using Kind = JsonValue::Kind;

constexpr std::size_t kMaxSweepBytes = std::size_t{1} << 24;
constexpr std::size_t kMaxRuns = 10000, kMaxName = 200;

struct Setting {
  std::string key;  // the table's name for it
  JsonValue value;
  int line = 0;
};

struct Variant {
  std::string name;
  int line = 0;
  std::vector<Setting> settings;
};

struct GridKey {
  std::string key;
  int line = 0;
  std::vector<JsonValue> values;
};

// One point of variants × grid.
struct Point {
  const Variant* variant = nullptr;  // null where the file has none
  std::vector<JsonValue> values;     // of the grid's keys
};

std::string last_part(const std::string& key) { return key.substr(key.find_last_of('.') + 1); }

// As part of a file's name: letters, digits and -+._ stay, ² and ³ become digits, all else a single dash.
std::string safe_name(std::string_view text) {
  std::string name;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = std::max<std::size_t>(utf8_bytes(text, i), 1);
    const std::string_view character = text.substr(i, bytes);
    const char c = character.front();
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
                       c == '.' || c == '_' || c == '-';
    if (character == "²" || character == "³") {
      name += character == "²" ? '2' : '3';
    } else if (plain && c != '-') {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
    i += bytes;
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  const std::size_t first = name.find_first_not_of(".-");  // no hidden folder, no ".", no flag
  return first == std::string::npos ? "" : name.substr(first);
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& file, const SweepBase& base, const Config& overrides)
      : file_(file), base_(base), overrides_(overrides) {
    plan_.file = file;
    plan_.text = text;
  }

  SweepPlan read() {
    read_document(parse_json(plan_.text, file_));
    check_conflicts();
    for (const GridKey& key : grid_) plan_.grid_keys.push_back(key.key);
    make_points();
    make_runs();
    return std::move(plan_);
  }

 private:
  [[noreturn]] void fail(int line, const std::string& what) const {
    throw ConfigError(format("[sweep] {}:{}: {}", file_, line, what));
  }

  void expect(const JsonValue& value, Kind kind, const std::string& what, const char* expected) const {
    if (value.kind() != kind) fail(value.line(), format("{}: expected {}, got {}", what, expected, describe(value)));
  }

  void read_document(const JsonValue& document) {
    expect(document, Kind::object, "the file", "an object");
    const std::vector<std::string> words = {"config", "set", "variants", "grid", "seeds"};
    std::string config;
    int config_line = document.line();
    for (const auto& [word, value] : document.members()) {
      if (word == "config") {
        expect(value, Kind::text, word, "a preset's name or a file");
        config = value.as_text();
        config_line = value.line();
      } else if (word == "set") {
        set_ = read_settings(value, word);
      } else if (word == "variants") {
        read_variants(value);
      } else if (word == "grid") {
        read_grid(value);
      } else if (word == "seeds") {
        read_seeds(value);
      } else {
        fail(value.line(), format("unknown key {}; did you mean {}?", word, nearest_word(word, words)));
      }
    }
    if (variants_.empty() && grid_.empty() && seeds_.empty()) {
      fail(document.line(), "expected variants, a grid or seeds: there is nothing to sweep over");
    }
    try {
      config_ = base_(config);
    } catch (const ConfigError& error) {
      throw ConfigError(format("{} (the configuration of {}:{})", error.what(), file_, config_line));
    }
  }

  // A value of a key, checked. `name` may be an alias.
  Setting read_setting(const std::string& name, const JsonValue& value, int line) const {
    const ConfigKey* key = find_config_key(name);
    if (key == nullptr && value.kind() == Kind::object) {
      fail(line, format("{}: expected a whole key with its section and a value, such as \"{}.KEY\": ...", name, name));
    }
    Config checked;
    checked.set_value(name, value, format("{}:{}", file_, line));  // refuses an unknown key too
    if (std::string_view(key->name) == "seed") fail(line, "seed: expected in \"seeds\", which every run takes one of");
    return {key->name, value, line};
  }

  std::vector<Setting> read_settings(const JsonValue& object, const std::string& what) const {
    expect(object, Kind::object, what, "an object of keys and values");
    std::vector<Setting> settings;
    for (const auto& [name, value] : object.members()) {
      Setting setting = read_setting(name, value, value.line());
      for (const Setting& other : settings) {
        if (other.key == setting.key) {
          fail(setting.line, format("{}: {} is given twice (as {} here)", what, other.key, name));
        }
      }
      settings.push_back(std::move(setting));
    }
    return settings;
  }

  void read_variants(const JsonValue& list) {
    expect(list, Kind::list, "variants", "a list of objects with name and set");
    if (list.items().empty()) fail(list.line(), "variants: expected at least one");
    for (const JsonValue& item : list.items()) {
      const std::string what = format("variants[{}]", variants_.size());
      expect(item, Kind::object, what, "an object with name and set");
      Variant variant{.name = "", .line = item.line(), .settings = {}};
      for (const auto& [word, value] : item.members()) {
        if (word == "name") {
          expect(value, Kind::text, what + ".name", "a text");
          variant.name = value.as_text();
        } else if (word == "set") {
          variant.settings = read_settings(value, what + ".set");
        } else {
          fail(value.line(), format("{}: unknown key {}; expected name and set", what, word));
        }
      }
      if (safe_name(variant.name).empty()) {
        fail(item.line(), format("{}: expected a name with letters or digits in it", what));
      }
      variants_.push_back(std::move(variant));
    }
  }

  void read_grid(const JsonValue& object) {
    expect(object, Kind::object, "grid", "an object of keys, each with a list of values");
    if (object.members().empty()) fail(object.line(), "grid: expected at least one key");
    for (const auto& [name, list] : object.members()) {
      const ConfigKey* key = find_config_key(name);
      if (key == nullptr) read_setting(name, list, list.line());  // refuses it
      if (list.kind() != Kind::list || list.items().empty()) {
        fail(list.line(), format("grid: {}: expected a list of values, got {}", name,
                                 list.kind() == Kind::list ? "an empty one" : describe(list)));
      }
      GridKey grid{.key = key->name, .line = list.line(), .values = {}};
      for (const GridKey& other : grid_) {
        if (other.key == grid.key) fail(grid.line, format("grid: {} is given twice (as {} here)", grid.key, name));
      }
      for (const JsonValue& value : list.items()) grid.values.push_back(read_setting(name, value, value.line()).value);
      grid_.push_back(std::move(grid));
    }
  }

  void read_seeds(const JsonValue& list) {
    expect(list, Kind::list, "seeds", "a list of whole numbers");
    if (list.items().empty()) fail(list.line(), "seeds: expected at least one");
    seeds_line_ = list.line();
    for (const JsonValue& value : list.items()) {
      Config checked;
      checked.set_value("seed", value, format("{}:{}", file_, value.line()));
      const std::uint64_t seed = checked.seed("seed");
      if (std::find(seeds_.begin(), seeds_.end(), seed) != seeds_.end()) {
        fail(value.line(), format("seeds: {} is given twice", seed));
      }
      seeds_.push_back(seed);
    }
  }

  // What one place sets must not be undone by another without a word.
  void check_conflicts() const {
    for (const Variant& variant : variants_) {
      for (const Setting& setting : variant.settings) {
        for (const GridKey& key : grid_) {
          if (key.key == setting.key) {
            fail(setting.line, format("{} is set by the variant \"{}\" and by the grid (line {}); expected in one of "
                                      "them",
                                      setting.key, variant.name, key.line));
          }
        }
        check_override(setting.key, setting.line);
      }
    }
    for (const GridKey& key : grid_) check_override(key.key, key.line);
    if (!seeds_.empty()) check_override("seed", seeds_line_);
  }

  void check_override(const std::string& key, int line) const {
    if (!overrides_.is_set(key)) return;
    fail(line, format("{} is varied by the sweep here, and set by the command line for all runs", key));
  }

  void make_points() {
    std::size_t count = std::max<std::size_t>(variants_.size(), 1) * std::max<std::size_t>(seeds_.size(), 1);
    for (const GridKey& key : grid_) {
      if (count <= kMaxRuns) count *= key.values.size();
    }
    if (count > kMaxRuns) fail(1, format("variants × grid × seeds are more than {} runs", kMaxRuns));
    std::vector<Point> points;
    for (const Variant& variant : variants_) points.push_back({&variant, {}});
    if (variants_.empty()) points.emplace_back();
    for (const GridKey& key : grid_) {
      std::vector<Point> finer;
      for (const Point& point : points) {
        for (const JsonValue& value : key.values) {
          finer.push_back(point);
          finer.back().values.push_back(value);
        }
      }
      points = std::move(finer);
    }
    points_ = std::move(points);
  }

  // The key without its section, where no other key of the grid ends alike.
  std::string short_key(const GridKey& key) const {
    const auto alike = std::count_if(grid_.begin(), grid_.end(),
                                     [&](const GridKey& other) { return last_part(other.key) == last_part(key.key); });
    return alike == 1 ? last_part(key.key) : key.key;
  }

  void make_runs() {
    std::vector<std::string> names;
    for (const Point& point : points_) {
      SweepCell cell{.variant = "", .values = point.values, .label = ""};
      std::string name;
      if (point.variant != nullptr) {
        cell.variant = cell.label = point.variant->name;
        name = safe_name(point.variant->name);
      }
      for (std::size_t i = 0; i < grid_.size(); ++i) {
        const std::string word = short_key(grid_[i]), value = value_text(point.values[i]);
        cell.label += format("{}{} {}", cell.label.empty() ? "" : ", ", word, value);
        name += format("{}{}-{}", name.empty() ? "" : "_", safe_name(word), safe_name(value));
      }
      plan_.cells.push_back(std::move(cell));
      names.push_back(std::move(name));
    }
    if (seeds_.empty()) {
      for (std::size_t c = 0; c < points_.size(); ++c) add_run(c, names[c], std::nullopt);
    }
    for (const std::uint64_t seed : seeds_) {  // outside: each cell has its first result before one has two
      for (std::size_t c = 0; c < points_.size(); ++c) {
        add_run(c, format("{}{}seed-{}", names[c], names[c].empty() ? "" : "_", seed), seed);
      }
    }
  }

  void add_run(std::size_t cell, std::string name, std::optional<std::uint64_t> seed) {
    const Point& point = points_[cell];
    const int line = point.variant != nullptr ? point.variant->line : grid_.empty() ? seeds_line_ : grid_.front().line;
    SweepRun run{.name = std::move(name), .cell = cell, .seed = seed, .settings = {}, .config = config_};
    const auto apply = [&](const std::string& key, const JsonValue& value) { run.config.set_value(key, value, file_); };
    const auto differ = [&](const std::string& key, const JsonValue& value) {
      apply(key, value);
      run.settings.emplace_back(key, value.dump());
    };
    for (const Setting& setting : set_) apply(setting.key, setting.value);
    if (point.variant != nullptr) {
      for (const Setting& setting : point.variant->settings) differ(setting.key, setting.value);
    }
    for (std::size_t i = 0; i < grid_.size(); ++i) differ(grid_[i].key, point.values[i]);
    if (seed) differ("seed", JsonValue::unsigned_integer(*seed));
    run.config.overlay(overrides_);
    if (run.name.size() > kMaxName) {
      fail(line, format("the folder of a run would be called {}..., longer than {} bytes; shorten the names of the "
                        "variants, or name lists of values by variants",
                        run.name.substr(0, 40), kMaxName));
    }
    if (is_sweep_file(run.name)) fail(line, format("{}: a file of the sweep has that name; name it another", run.name));
    if (!names_.insert(run.name).second) {
      fail(line,
           format("two runs would have the folder {}; give them names that differ in letters or digits", run.name));
    }
    const auto [same, is_new] = configurations_.emplace(run.config.json(), run.name);
    if (!is_new) fail(line, format("the runs {} and {} have the same configuration", same->second, run.name));
    plan_.runs.push_back(std::move(run));
  }

  std::string file_;
  const SweepBase& base_;
  const Config& overrides_;
  Config config_;  // of all runs, before "set"
  std::vector<Setting> set_;
  std::vector<Variant> variants_;
  std::vector<GridKey> grid_;
  std::vector<std::uint64_t> seeds_;
  int seeds_line_ = 0;
  std::vector<Point> points_;
  std::set<std::string> names_;
  std::map<std::string, std::string> configurations_;  // of each run: as JSON, its name
  SweepPlan plan_;
};

// Runs `check`, and says of which run it speaks where it throws.
template <class Check>
void named(const std::string& run, const Check& check) {
  const auto text = [&](const std::exception& error) { return format("{} (run {} of the sweep)", error.what(), run); };
  try {
    check();
  } catch (const ConfigError& error) {
    throw ConfigError(text(error));
  } catch (const ValueError& error) {
    throw ConfigError(text(error));
  } catch (const NotImplementedError& error) {
    throw ConfigError(text(error));
  } catch (const DataError& error) {
    throw DataError(text(error));
  }
}

}  // namespace

std::string value_text(const JsonValue& value) {
  if (value.kind() == Kind::text) return value.as_text();
  if (value.kind() == Kind::real) return format("{}", value.as_double());
  if (value.kind() != Kind::list) return value.dump();
  std::string text;
  for (const JsonValue& item : value.items()) text += (text.empty() ? "" : ",") + value_text(item);
  return text;
}

std::string run_label(const SweepPlan& plan, std::size_t run) {
  const SweepRun& its = plan.runs.at(run);
  const std::string& cell = plan.cells.at(its.cell).label;
  if (!its.seed) return cell;
  const bool one_seed =
      std::all_of(plan.runs.begin(), plan.runs.end(), [&](const SweepRun& other) { return other.seed == its.seed; });
  if (one_seed && !cell.empty()) return cell;
  return format("{}{}seed {}", cell, cell.empty() ? "" : ", ", *its.seed);
}

SweepPlan parse_sweep(std::string_view text, const std::string& file, const SweepBase& base, const Config& overrides) {
  return Reader(text, file, base, overrides).read();
}

SweepPlan read_sweep(const std::string& file, const SweepBase& base, const Config& overrides) {
  const std::string path = find_sweep_file(file);
  std::string text;
  try {
    text = read_file(path, kMaxSweepBytes);
  } catch (const IoError& error) {
    throw ConfigError(format("[sweep] {}", error.what()));
  }
  return parse_sweep(text, path, base, overrides);
}

void check_cells(const SweepPlan& plan, const std::vector<bool>& cells, const std::function<bool()>& stop) {
  std::vector<bool> wanted = cells;
  std::optional<DataOptions> opened;
  DataParts data;  // of the last cell: most sweeps have one data set
  for (const SweepRun& run : plan.runs) {
    if (stop && stop()) return;
    if (!wanted.at(run.cell)) continue;
    wanted[run.cell] = false;
    named(run.name, [&] {
      refuse_unavailable(run.config);
      const DataOptions options = data_options(run.config);
      if (opened != options) {
        opened.reset();
        data = open_data(options);
        opened = options;
      }
      const Trainer trainer(run.config, build_experiment(run.config, data), {});
    });
  }
}

void check_same_sweep(const SweepPlan& plan, const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return;
  const std::vector<std::string> old_names = sweep_run_names(folder);
  if (old_names.empty()) {
    if (fs::is_directory(folder, error) && fs::is_empty(folder, error)) return;
    throw ConfigError(
        format("[sweep] {} exists already and is no sweep's folder (it has no {}); name another one with --out", folder,
               kSweepResults));
  }
  const auto has_run = [&](const std::string& name) { return fs::exists(folder + "/" + name + "/config.json", error); };
  std::set<std::string> planned;
  std::string differences;
  const auto add = [&](const std::string& difference) {
    differences += (differences.empty() ? "" : "; ") + difference;
  };
  for (const SweepRun& run : plan.runs) {
    planned.insert(run.name);
    if (!has_run(run.name)) continue;
    const Config old = Config::from_file(folder + "/" + run.name + "/config.json");
    const std::vector<ConfigDifference> changed = config_differences(old, run.config);
    if (!changed.empty()) add(format("{}: {}", run.name, describe(changed)));
  }
  for (const std::string& name : old_names) {
    if (!planned.contains(name) && has_run(name)) add(format("{} is no run of it any more", name));
  }
  if (differences.empty()) return;
  throw ConfigError(format(
      "[sweep] {} no longer describes what is in {}: {}; runs may be added, nothing else: give the old values, or name "
      "another folder with --out",
      plan.file, folder, differences));
}

}  // namespace polygrad
