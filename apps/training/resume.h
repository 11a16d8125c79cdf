// Where a run begins: anew, or at a checkpoint, which must be of the same run.
//
// Where this stands: below trainer.h, above checkpoint.h and run_folder.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/training/checkpoint.h"
#include "apps/training/config.h"

namespace polygrad {

// The checkpoint to go on from; nothing for a new run. `resume` is "", "auto", a run folder or a checkpoint; `out`, the
// run folder, is settled where it is "". Throws ConfigError where they contradict each other, or a new run's folder
// exists; IoError where there is no checkpoint.
std::optional<std::string> find_resume(std::string& out, const std::string& resume);

// Refuses a resume with another configuration or other data than the checkpoint's, unless each difference is allowed:
// ConfigError with a list of them. `lr_change` says what they do to the learning rate.
void check_same_run(const CheckpointInfo& old, const Config& config, const std::string& fingerprint,
                    const std::vector<std::string>& allowed, const std::string& lr_change);

}  // namespace polygrad
