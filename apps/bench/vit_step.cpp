// polygrad_bench vit_step: a whole training step: forward, cross-entropy, backward, AdamW.
#include <algorithm>

#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "apps/bench/memory.h"
#include "apps/bench/report.h"
#include "apps/bench/step_data.h"
#include "apps/training/profile_report.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/parallel.h"
#include "engine/profile.h"
#include "models/optim/adamw.h"
#include "models/summary.h"
#include "models/zoo.h"
#include "ops/binary.h"
#include "ops/loss.h"

namespace polygrad::bench {
namespace {

constexpr std::ptrdiff_t kLosses = 10;  // of the first steps: so many are reported

// Tables of where the time of some steps goes, on stderr.
void say_profile(const Ceiling& ceiling, int steps, const std::function<double()>& step) {
  Profiler profiler;
  std::vector<double> ceilings;
  for (int i = 0; i < steps; ++i) {
    step();
    const Profiler aside;  // meanwhile the other rests
    ceilings.push_back(ceiling.measure(0.1));
  }
  const std::vector<ProfileRow> rows = profiler.rows();
  const ProfileScale scale{steps, num_threads(), median(ceilings)};
  say(false, profile_by_op(rows, scale));
  say(false, profile_by_module(rows, scale));
  say(false, profile_legend(scale));
}

}  // namespace

std::string run_vit_step(const VitStepOptions& options, const Common& common) {
  const Precision precision = precision_of("[vit_step] --precision", options.precision);
  if (options.batch < 1) throw ValueError(format("[vit_step] --batch {}: expected a positive number", options.batch));
  if (options.classes < 1 || options.image < 1) {
    throw ValueError(
        format("[vit_step] --image {} --classes {}: expected positive numbers", options.image, options.classes));
  }
  const StepData data = options.data.empty() ? generated_data(options.image, options.classes, options.batch)
                                             : idx_data(options.data, options.batch);
  if (data.height != options.image || data.width != options.image || data.train->classes() > options.classes) {
    throw ConfigError(format("[vit_step] --image {} --classes {}: {} has {} x {} images of {} classes", options.image,
                             options.classes, options.data, data.height, data.width, data.train->classes()));
  }
  ModelConfig config;
  config.image_size = {options.image, options.image};
  config.in_channels = data.channels;
  config.patch_size = {options.patch, options.patch};
  config.num_classes = options.classes;
  config.phi = {options.phi};
  config.scale = options.scale;
  config.path = options.path;
  config.shortcuts = options.shortcuts;
  const std::unique_ptr<Model> model = create_model(options.model, config);
  AdamW optimizer(param_groups(*model, 0.05));

  std::vector<double> losses, data_seconds;
  SystemRequests start_of_third;
  // What TrainStep of apps/training does with one micro-batch, nothing clipped; the test compares them bit for bit.
  const auto step = [&] {
    if (losses.size() == 2) start_of_third = system_requests();
    const double begin = seconds();
    const Batch batch = *data.loader->next();
    profile_mark("data");
    const double start = seconds();
    const PrecisionGuard guard(precision);
    ForwardContext context;
    context.training = true;
    context.step = static_cast<std::int64_t>(losses.size());
    const double share = 1.0 / static_cast<double>(options.batch);
    const Tensor loss =
        cross_entropy(model->forward(batch.images, context), batch.labels, {.reduction = Reduction::sum});
    losses.push_back(static_cast<double>(loss.item<float>()) * share);
    mul(loss, share).backward();
    const ProfilePhase phase("optimizer");
    optimizer.step({.lr = 1e-4, .beta1 = {}});
    profile_mark("step");
    optimizer.zero_grad();
    profile_mark("zero_grad");
    data_seconds.push_back(start - begin);
    return seconds() - start;
  };
  step();
  step();
  const double peak = peak_resident_mib();  // before the ceiling's own matrices
  const Ceiling ceiling;
  const double flops = 3 * model_flops(*model, options.batch);
  const Paired paired = measure_pairs(ceiling, flops, common.pairs, step);
  while (static_cast<std::int64_t>(losses.size()) < options.steps) step();
  const SystemRequests end = system_requests();
  const auto each_step = [&](std::int64_t from, std::int64_t to) {  // from the third step on
    return static_cast<double>(to - from) / static_cast<double>(losses.size() - 2);
  };
  if (options.profile) say_profile(ceiling, std::max(1, common.pairs), step);
  say(common.quiet, format("{} {}, batch {}: {:.1f} ms a step, {:.1f} images/s, {:.0f} GFLOP/s of {:.0f} ({:.2f}), "
                           "peak {:.0f} MiB, loss {:.4f} after {} steps",
                           options.model, options.phi, options.batch, 1e3 * paired.seconds,
                           static_cast<double>(options.batch) / paired.seconds, paired.gflops, paired.ceiling_gflops,
                           paired.ratio, peak, losses.back(), losses.size()));
  return Report("vit_step")
      .add("model", options.model)
      .add("image", options.image)
      .add("patch", options.patch)
      .add("classes", options.classes)
      .add("batch", options.batch)
      .add("phi", options.phi)
      .add("scale", options.scale)
      .add("path", options.path)
      .add("precision", options.precision)
      .add("shortcuts", options.shortcuts)
      .add("step_ms", 1e3 * paired.seconds)
      .add("images_per_s", static_cast<double>(options.batch) / paired.seconds)
      .add(paired)
      .add("peak_mib", peak)
      .add("data_ms", 1e3 * median(data_seconds))
      .add("steps", static_cast<std::int64_t>(losses.size()))
      .add("page_faults_per_step", each_step(start_of_third.page_faults, end.page_faults))
      .add("allocator_misses_per_step", each_step(start_of_third.allocator_misses, end.allocator_misses))
      .add("loss", losses.back())
      .add("losses",
           std::vector<double>(losses.begin(), losses.begin() + std::min<std::ptrdiff_t>(kLosses, std::ssize(losses))))
      .line();
}

}  // namespace polygrad::bench
