// A sweep: the runs that one file describes, variants × grid × seeds, as configurations.
//
// Where this stands: above config.h; sweep_results.h has what the runs came to, apps/command/sweep_command.h trains
// them. What a file may say: docs/sweeps.md. Read next: sweep.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/training/config.h"

namespace polygrad {

// What the runs of all seeds have in common: a variant and a point of the grid.
struct SweepCell {
  std::string variant;            // "" where the file has none
  std::vector<JsonValue> values;  // of SweepPlan::grid_keys, as the file has them
  std::string label;              // for pictures: "x3, lr 0.001"; "" where it has neither
};

struct SweepRun {
  std::string name;      // of its folder: "x3_lr-0.001_seed-0"
  std::size_t cell = 0;  // in SweepPlan::cells
  std::optional<std::uint64_t> seed;
  std::vector<std::pair<std::string, std::string>> settings;  // keys and values (JSON) that the runs differ in
  Config config;
};

struct SweepPlan {
  std::string file, text;  // the file's path and content
  std::vector<std::string> grid_keys;
  std::vector<SweepCell> cells;  // variants outside, the last key of the grid inside
  std::vector<SweepRun> runs;    // in the order in which they are trained: every cell's first seed, then its second
};

// "0.001", "x3", "x,x3": a value in names and tables.
std::string value_text(const JsonValue& value);

// What the run's curves are called: its cell's label, and its seed where there are several.
std::string run_label(const SweepPlan& plan, std::size_t run);

// Makes the configuration that "config" of the file names; "" where the file has no such key.
using SweepBase = std::function<Config(const std::string& config)>;

// `overrides`: what the command line sets on top of every run. Throws ConfigError with file, line and key: what is no
// JSON, an unknown key, a wrong value, a key that two of set's, variants', grid and command line would fight over, two
// runs of one configuration or one folder name, no or too many runs (10,000).
SweepPlan read_sweep(const std::string& file, const SweepBase& base, const Config& overrides);
// The same from text; `file` stands in messages.
SweepPlan parse_sweep(std::string_view text, const std::string& file, const SweepBase& base, const Config& overrides);

// Builds data, model, optimizer and schedule of one run of each of these cells, and lets them go again. Throws what
// Trainer's constructor throws, with the run's name.
void check_cells(const SweepPlan& plan, const std::vector<bool>& cells, const std::function<bool()>& stop = {});

// Refuses to go on in a sweep's folder with runs of other configurations than those in it, or without some of them:
// ConfigError with what differs. Runs that were added are fine, and so is a folder that is not there or empty.
void check_same_sweep(const SweepPlan& plan, const std::string& folder);

}  // namespace polygrad
