// dry_run: what a configuration would do, without doing it: one training and one evaluation batch, nothing written.
#pragma once

#include <string>

#include "apps/training/config.h"
#include "apps/training/init_weights.h"

namespace polygrad {

// The report for people: effective configuration, layer table, parameter groups, data summary, operations, memory
// (measured on one step), first batch's statistics and loss. Throws whatever a run would throw at its start.
// `init`: the weights that the run would start from (init_weights.h); "": fresh ones.
std::string dry_run(const Config& config, const std::string& init = "", const InitOptions& init_options = {});

}  // namespace polygrad
