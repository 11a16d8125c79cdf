// profile_run: a few training steps of a configuration under a Profiler; nothing is written.
//
// Where this stands: behind vit_train --profile; engine/profile.h measures, profile_report.h makes the tables.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "apps/training/config.h"
#include "apps/training/experiment.h"
#include "engine/profile.h"

namespace polygrad {

struct ProfileRunOptions {
  std::int64_t warmup = 3;  // steps before, which fill caches and code
  std::int64_t steps = 20;  // at most: a shorter run (train.max_steps) is profiled in full
  // Called before each profiled step and after the last, for what is to be measured under the same conditions.
  std::function<void()> between = {};
};

struct ProfileRunResult {
  Device device;                        // where the steps were computed
  std::int64_t steps = 0, samples = 0;  // profiled
  std::vector<ProfileRow> rows;         // of all profiled steps: their times add up to `seconds`
  double seconds = 0;
  double operations = 0;         // of the products that these steps need: none counts twice
  double page_faults = 0;        // of a step
  double fresh_allocations = 0;  // of a step: what the allocator had to ask the system for
  double peak_tensor_mib = 0;    // in tensors and workspaces at once
  double peak_resident_mib = 0;  // of the process, before the first call of `between`
  double loss = 0;               // of the last step
};

// Throws what a run would throw at its start, and NumericError where it diverges.
ProfileRunResult profile_run(const Config& config, const ProfileRunOptions& options = {});
// With data and model of the caller's.
ProfileRunResult profile_run(const Config& config, Experiment experiment, const ProfileRunOptions& options = {});

}  // namespace polygrad
