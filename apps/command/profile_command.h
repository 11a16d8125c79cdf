// vit_train --profile: where the time of a training step goes.
//
// Where this stands: program code over apps/training/profile_run.h; the ceiling is polygrad_bench's.
#pragma once

#include <string>

#include "apps/training/config.h"

namespace polygrad {

// Profiles some steps of the configuration and returns the report for people. Writes nothing. Throws what a run would.
std::string profile_command(const Config& config);

}  // namespace polygrad
