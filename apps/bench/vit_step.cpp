// polygrad_bench vit_step: a whole training step: forward, cross-entropy, backward, AdamW.
#include <algorithm>
#include <optional>

#include "apps/bench/bench.h"
#include "apps/bench/gpu.h"
#include "apps/bench/memory.h"
#include "apps/bench/report.h"
#include "apps/bench/step_data.h"
#include "apps/bench/step_profile.h"
#include "engine/capture.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/memory.h"
#include "engine/profile.h"
#include "models/optim/adamw.h"
#include "models/summary.h"
#include "models/zoo.h"
#include "ops/binary.h"
#include "ops/loss.h"
#include "ops/view.h"

namespace polygrad::bench {
namespace {

constexpr std::int64_t kLosses = 10;  // of the first steps: so many are reported

// Forward and backward of a batch, recorded once and started as a whole, as the trainer does it on a GPU (TrainStep).
class StepGraph {
 public:
  StepGraph(const Model& model, const Batch& like, const std::function<Tensor(const Tensor&, const Tensor&)>& descend)
      : images_(empty_like(like.images)),
        labels_(empty_like(like.labels)),
        graph_(like.images.device(), [&] { loss_ = descend(images_, labels_); }) {
    for (const auto& [name, parameter] : model.named_parameters()) {
      if (parameter.grad().defined()) gradients_.emplace_back(parameter, parameter.grad());
    }
  }
  // The loss, until the next run.
  Tensor run(const Batch& batch) {
    images_.copy_(batch.images);
    labels_.copy_(batch.labels);
    graph_.run();
    for (auto& [parameter, gradient] : gradients_) parameter.set_grad(gradient);
    return loss_;
  }

 private:
  Tensor images_, labels_, loss_;
  Capture graph_;
  std::vector<std::pair<Tensor, Tensor>> gradients_;
};

}  // namespace

std::string run_vit_step(const VitStepOptions& options, const Common& common) {
  const Device device = common.device;
  const Precision precision = precision_of("[vit_step] --precision", options.precision, device);
  if (options.profile && common.on_gpu()) {
    throw ValueError("[vit_step] --profile: the profiler reads the host's clock; expected --device cpu");
  }
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
  if (options.depth > 0) config.depth = options.depth;
  config.phi = {options.phi};
  config.scale = options.scale;
  config.path = options.path;
  config.shortcuts = options.shortcuts;
  const std::unique_ptr<Model> model = create_model(options.model, config);
  model->to(device);
  AdamW optimizer(param_groups(*model, 0.05));

  // On a GPU, which is not waited for: of the first steps, and behind them of the last one.
  const Tensor losses_there = common.on_gpu() ? zeros({kLosses + 1}, {.device = device}) : Tensor();
  std::vector<double> losses, data_seconds;
  std::int64_t steps = 0;
  SystemRequests start_of_third;
  // What TrainStep of apps/training does with one micro-batch, nothing clipped; the test compares them bit for bit.
  const double share = 1.0 / static_cast<double>(options.batch);
  const auto descend = [&](const Tensor& images, const Tensor& labels) {
    const PrecisionGuard guard(precision, device);
    ForwardContext context;
    context.training = true;
    context.step = steps;
    const Tensor loss = cross_entropy(model->forward(images, context), labels, {.reduction = Reduction::sum});
    if (!common.on_gpu()) losses.push_back(static_cast<double>(loss.item<float>()) * share);
    mul(loss, share).backward();
    return loss.detach();
  };
  const auto update = [&] {
    ++steps;
    const ProfilePhase phase("optimizer");
    optimizer.step({.lr = 1e-4, .beta1 = {}});
    profile_mark("step");
    optimizer.zero_grad();
    profile_mark("zero_grad");
  };
  const auto next_batch = [&] {
    const double begin = seconds();
    Batch batch = *data.loader->next();
    data_seconds.push_back(seconds() - begin);
    return batch;
  };
  // On a GPU the batches are there before the clock starts, and come round again.
  std::vector<Batch> there;
  for (std::int64_t i = 0; common.on_gpu() && i < kLosses; ++i) {
    there.push_back(next_batch());
    there.back().images = there.back().images.to(device);
    there.back().labels = there.back().labels.to(device);
  }
  std::optional<StepGraph> graph;
  const auto step_there = [&] {
    const Batch& batch = there[static_cast<std::size_t>(steps % kLosses)];
    const Tensor loss = graph ? graph->run(batch) : descend(batch.images, batch.labels);
    select(losses_there, 0, std::min(steps, kLosses)).copy_(loss);
    update();
  };
  const auto step_here = [&] {
    if (steps == 2) start_of_third = system_requests();
    const Batch batch = next_batch();
    profile_mark("data");
    const double start = seconds();
    descend(batch.images, batch.labels);
    update();
    return seconds() - start;
  };
  const auto step = [&] { common.on_gpu() ? step_there() : static_cast<void>(step_here()); };
  step();
  step();
  double peak = peak_resident_mib();  // before the ceiling's own matrices
  if (common.on_gpu()) {
    const double unused = static_cast<double>(there[0].images.numel() * (kLosses - 1)) * sizeof(float);
    peak = (static_cast<double>(memory_stats(device).peak_bytes_in_use) - unused) / (1 << 20);
  }
  if (common.on_gpu() && options.capture) graph.emplace(*model, there[0], descend);
  const std::unique_ptr<Limit> ceiling = make_ceiling(common, precision);
  const double flops = 3 * model_flops(*model, options.batch);
  if (common.on_gpu()) start_of_third = system_requests(device);
  const Paired paired = common.on_gpu() ? measure_pairs(*ceiling, flops, common.pairs, Batches(device, step_there))
                                        : measure_pairs(*ceiling, flops, common.pairs, step_here);
  while (steps < options.steps) step();
  const SystemRequests end = system_requests(device);
  for (std::int64_t i = 0; common.on_gpu() && i < std::min(steps, kLosses + 1); ++i) {
    losses.push_back(static_cast<double>(select(losses_there, 0, i).item<float>()) * share);
  }
  const auto each_step = [&](std::int64_t from, std::int64_t to) {  // from the third step on
    return static_cast<double>(to - from) / static_cast<double>(steps - 2);
  };
  if (options.profile) say_profile(*ceiling, std::max(1, common.pairs), step_here);
  say(common.quiet, format("{} {}, batch {}: {:.1f} ms a step, {:.1f} images/s, {:.0f} GFLOP/s of {:.0f} ({:.2f}), "
                           "peak {:.0f} MiB, loss {:.4f} after {} steps",
                           options.model, options.phi, options.batch, 1e3 * paired.seconds,
                           static_cast<double>(options.batch) / paired.seconds, paired.gflops, paired.ceiling_gflops,
                           paired.ratio, peak, losses.back(), steps));
  Report report("vit_step", device);
  report.add("model", options.model);
  if (options.depth > 0) report.add("depth", options.depth);
  if (common.on_gpu()) report.add("capture", options.capture);
  return report.add("image", options.image)
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
      .add("steps", steps)
      .add("page_faults_per_step", each_step(start_of_third.page_faults, end.page_faults))
      .add("allocator_misses_per_step", each_step(start_of_third.allocator_misses, end.allocator_misses))
      .add("loss", losses.back())
      .add("losses", std::vector<double>(losses.begin(), losses.begin() + std::min(kLosses, std::ssize(losses))))
      .line();
}

}  // namespace polygrad::bench
