#include "apps/training/profile_run.h"

#include <sys/resource.h>

#include <algorithm>

#include "apps/training/rehearsal.h"
#include "engine/memory.h"
#include "models/summary.h"

namespace polygrad {

namespace {

rusage usage() {
  rusage now = {};
  getrusage(RUSAGE_SELF, &now);
  return now;
}

int workers(const Config& config) { return static_cast<int>(config.integer("data.workers")); }

ProfileRunResult profile(Rehearsal& rehearsal, const ProfileRunOptions& options) {
  ProfileRunResult result;
  const Device device = result.device = rehearsal.device();
  result.steps = std::min(options.steps, rehearsal.total_steps());
  for (std::int64_t i = 0; i < options.warmup; ++i) rehearsal.step();
  result.peak_resident_mib = static_cast<double>(usage().ru_maxrss) / 1024;
  reset_peak_memory(device);
  Profiler profiler(device);
  const auto between = [&] {
    if (!options.between) return;
    const Profiler aside;  // while this one looks, the other rests
    options.between();
  };
  for (std::int64_t i = 0; i < result.steps; ++i) {
    between();
    const std::uint64_t fresh = memory_stats(device).fresh_allocations;
    const long faults = usage().ru_minflt;
    const StepResult step = rehearsal.step();
    result.page_faults += static_cast<double>(usage().ru_minflt - faults) / static_cast<double>(result.steps);
    result.fresh_allocations +=
        static_cast<double>(memory_stats(device).fresh_allocations - fresh) / static_cast<double>(result.steps);
    result.samples += step.samples;
    result.loss = step.loss;
  }
  result.rows = profiler.rows();
  between();
  for (const ProfileRow& row : result.rows) result.seconds += 1e-9 * static_cast<double>(row.nanoseconds);
  result.operations =
      3 * model_flops(*rehearsal.experiment().model, 1) * static_cast<double>(result.samples);  // backward: twice
  result.peak_tensor_mib = static_cast<double>(memory_stats(device).peak_bytes_in_use) / (1 << 20);
  return result;
}

}  // namespace

ProfileRunResult profile_run(const Config& config, const ProfileRunOptions& options) {
  Rehearsal rehearsal(config, workers(config));
  return profile(rehearsal, options);
}

ProfileRunResult profile_run(const Config& config, Experiment experiment, const ProfileRunOptions& options) {
  Rehearsal rehearsal(config, std::move(experiment), workers(config));
  return profile(rehearsal, options);
}

}  // namespace polygrad
