// Presets: configurations that come with polygrad, found by a bare name.
//
// Where this stands: below config.h. They lie in apps/experiments/ of the sources and in share/polygrad/experiments of
// a build or an installation, which is where a program looks from its own place: nothing depends on where it was built.
#pragma once

#include <string>
#include <vector>

namespace polygrad {

// The folder of presets: $POLYGRAD_EXPERIMENTS, or ../share/polygrad/experiments seen from the running program; ""
// where neither is there.
std::string preset_folder();
// The path of NAME.json in that folder; "" where there is none.
std::string find_preset(const std::string& name);
std::vector<std::string> preset_names();  // sorted

// What --config names: a path where that file exists or the word looks like one (it has a '/' or ends with .json), else
// a preset. Throws ConfigError naming what was tried, and the nearest preset.
std::string find_config_file(const std::string& word);
// The same for --sweep; those that come with polygrad lie in sweeps/ of the folder of presets.
std::string find_sweep_file(const std::string& word);

}  // namespace polygrad
