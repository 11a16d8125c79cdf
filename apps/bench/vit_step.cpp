// polygrad_bench vit_step: a whole training step: forward, cross-entropy, backward, AdamW.
#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "apps/bench/memory.h"
#include "apps/bench/report.h"
#include "apps/training/profile_report.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/generator.h"
#include "engine/parallel.h"
#include "engine/profile.h"
#include "models/optim/adamw.h"
#include "models/summary.h"
#include "models/zoo.h"
#include "ops/loss.h"

namespace polygrad::bench {

std::string run_vit_step(const VitStepOptions& options, const Common& common) {
  if (options.precision != "f32") {
    throw ValueError(
        format("[vit_step] --precision {}: this version trains in f32 only; expected f32", options.precision));
  }
  if (options.batch < 1) throw ValueError(format("[vit_step] --batch {}: expected a positive number", options.batch));
  ModelConfig config;
  config.image_size = {options.image, options.image};
  config.patch_size = {options.patch, options.patch};
  config.num_classes = options.classes;
  config.phi = {options.phi};
  config.scale = options.scale;
  config.path = options.path;
  config.shortcuts = options.shortcuts;
  const std::unique_ptr<Model> model = create_model(options.model, config);
  AdamW optimizer(param_groups(*model, 0.05));

  Generator generator(1);
  const Shape input = model->input_shape();
  const Tensor images = randn({options.batch, input[0], input[1], input[2]}, {.generator = &generator});
  std::vector<std::int64_t> ids(static_cast<std::size_t>(options.batch));
  for (std::int64_t& id : ids) id = generator.integer(0, options.classes);
  const Tensor labels = Tensor::from_vector(ids);

  std::int64_t steps = 0;
  double loss_value = 0;
  const auto step = [&] {
    const double start = seconds();
    ForwardContext context;
    context.training = true;
    context.step = steps++;
    const Tensor loss = cross_entropy(model->forward(images, context), labels);
    loss.backward();
    const ProfilePhase phase("optimizer");
    optimizer.step({.lr = 1e-4, .beta1 = {}});
    profile_mark("step");
    optimizer.zero_grad();
    profile_mark("zero_grad");
    loss_value = loss.item<float>();
    return seconds() - start;
  };
  step();
  step();
  const double peak = peak_resident_mib();  // before the ceiling's own matrices
  const Ceiling ceiling;
  const double flops = 3 * model_flops(*model, options.batch);
  const Paired paired = measure_pairs(ceiling, flops, common.pairs, step);
  if (options.profile) {
    Profiler profiler;
    for (int i = 0; i < common.pairs; ++i) step();
    const std::vector<ProfileRow> rows = profiler.rows();
    const ProfileScale scale{common.pairs, num_threads(), paired.ceiling_gflops};
    say(false, profile_by_op(rows, scale));
    say(false, profile_by_module(rows, scale));
  }
  say(common.quiet, format("{} {}, batch {}: {:.1f} ms a step, {:.1f} images/s, {:.0f} GFLOP/s of {:.0f} ({:.2f}), "
                           "peak {:.0f} MiB, loss {:.4f} after {} steps",
                           options.model, options.phi, options.batch, 1e3 * paired.seconds,
                           static_cast<double>(options.batch) / paired.seconds, paired.gflops, paired.ceiling_gflops,
                           paired.ratio, peak, loss_value, steps));
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
      .add("loss", loss_value)
      .line();
}

}  // namespace polygrad::bench
