#include "apps/command/profile_command.h"

#include <optional>
#include <vector>

#include "apps/bench/ceiling.h"
#include "apps/training/device.h"
#include "apps/training/profile_report.h"
#include "apps/training/profile_run.h"
#include "engine/format.h"
#include "engine/parallel.h"
#include "ops/gemm_provider.h"

namespace polygrad {

std::string profile_command(const Config& config) {
  constexpr double kSlice = 0.05;  // seconds of the ceiling between two steps
  std::optional<bench::Ceiling> ceiling;
  std::vector<double> ceilings;
  ProfileRunOptions options;
  const bool on_cpu = choose_device(config).type == DeviceType::cpu;
  if (on_cpu) {  // the ceiling is the CPU's
    options.between = [&] {
      if (!ceiling) ceiling.emplace();  // not before the first steps: its matrices would count as theirs
      ceilings.push_back(ceiling->measure(kSlice));
    };
  }
  const ProfileRunResult result = profile_run(config, options);

  const ProfileScale scale{result.steps, num_threads(), on_cpu ? bench::median(ceilings) : 0};
  const double steps = static_cast<double>(result.steps), samples = static_cast<double>(result.samples);
  const double rate = 1e-9 * result.operations / result.seconds;
  double data_seconds = 0;
  for (const ProfileRow& row : result.rows) {
    if (row.phase == "data") data_seconds += 1e-9 * static_cast<double>(row.nanoseconds);
  }
  std::string text =
      on_cpu ? format("{} steps after {} to warm up; {} threads, {} products by {}\n\n", result.steps, options.warmup,
                      scale.threads, config.text("train.precision"), to_string(gemm_provider()))
             : format(
                   "{} steps after {} to warm up; {} ({}), {} products by cuBLASLt; each op is waited for, so the "
                   "times include what starting its kernels takes, and a step is shorter without a profile\n\n",
                   result.steps, options.warmup, to_string(result.device), device_name(result.device),
                   config.text("train.precision"));
  text += profile_by_op(result.rows, scale) + "\n" + profile_by_module(result.rows, scale) + "\n" +
          profile_legend(scale) + "\n";
  text += format("a step:  {:.1f} ms for {:.0f} images, {:.1f} images/s; {}{:.1f} GFLOP it needs\n",
                 1e3 * result.seconds / steps, samples / steps, samples / result.seconds,
                 on_cpu ? format("{:.2f} of the ceiling, by the ", rate / scale.ceiling_gflops)
                        : format("{:.1f} GFLOP/s, by the ", rate),
                 1e-9 * result.operations / steps);
  text += format("data:    {:.1f} % of the time went to waiting for batches and mixing them\n",
                 100 * data_seconds / result.seconds);
  text += format(
      "memory:  {:.0f} MiB of tensors at most, {:.0f} MiB of the process; a step has {:.0f} page faults and asks "
      "the system for {:.1f} blocks",
      result.peak_tensor_mib, result.peak_resident_mib, result.page_faults, result.fresh_allocations);
  return text;
}

}  // namespace polygrad
