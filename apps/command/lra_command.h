// What lra_train has beside the flags of all training programs: --task, --preset, --generate.
//
// Where this stands: below train_command.cpp, above data/ (the generators) and apps/training (configurations).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "apps/training/config.h"

namespace polygrad {

struct LraFlags {
  std::string task, preset = "default", generate;
  std::int64_t count = 0;  // 0: the task's
};

// "listops, text, ...".
std::string lra_task_names();
// The preset of a task (apps/experiments/lra_TASK.json, or lra_TASK_reference.json), and on top of it the file or
// preset that `file` names, where it is not empty. Throws ConfigError for an unknown task or preset, and what
// Config::from_file throws.
Config lra_task_config(const LraFlags& flags, const std::string& file);
// --generate: writes the task's data into a folder; `say` hears progress. Throws ConfigError where the task has no
// generator or the folder holds such data already.
void generate_lra(const LraFlags& flags, const Config& config, const std::function<void(std::string_view)>& say);

}  // namespace polygrad
