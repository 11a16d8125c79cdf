// polygrad_bench lra_step: a whole training step of a Long Range Arena transformer: forward, cross-entropy, backward,
// AdamW.
#include <algorithm>

#include "apps/bench/bench.h"
#include "apps/bench/ceiling.h"
#include "apps/bench/memory.h"
#include "apps/bench/report.h"
#include "apps/bench/step_profile.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/profile.h"
#include "models/optim/adamw.h"
#include "models/summary.h"
#include "models/zoo.h"
#include "ops/binary.h"
#include "ops/loss.h"

namespace polygrad::bench {
namespace {

// Ids 1 ... 15 in the batch's rows, as long as `lengths` says in turn; -1 behind their ends.
Tensor made_up_tokens(const LraStepOptions& options, std::int64_t towers, std::int64_t tokens) {
  Generator generator(1);
  std::vector<std::int64_t> ids;
  for (std::int64_t row = 0; row < options.batch * towers; ++row) {
    const std::size_t turn = options.lengths.empty() ? 0 : static_cast<std::size_t>(row) % options.lengths.size();
    const std::int64_t length = options.lengths.empty() ? tokens : options.lengths[turn];
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(i < length ? generator.integer(1, 16) : -1);
  }
  return Tensor::from_vector(ids, {options.batch, towers, tokens});
}

void check(const LraStepOptions& options) {
  if (options.batch < 1 || options.tokens < 0) {
    throw ValueError(
        format("[lra_step] --batch {} --tokens {}: expected positive numbers", options.batch, options.tokens));
  }
  for (const std::int64_t length : options.lengths) {
    if (length < 1 || (options.tokens > 0 && length > options.tokens)) {
      throw ValueError(format("[lra_step] --lengths {}: expected 1 to --tokens", length));
    }
  }
}

}  // namespace

std::string run_lra_step(const LraStepOptions& options, const Common& common) {
  check(options);
  ModelConfig config;
  if (options.tokens > 0) config.text_length = options.tokens;
  config.phi = {options.phi};
  config.scale = options.scale;
  config.path = options.path;
  config.dropout = options.dropout;
  config.attention_dropout = options.attention_dropout;
  const std::unique_ptr<Model> model = create_model("lra_" + options.task, config);
  const std::int64_t towers = model->input_shape()[0], tokens = model->input_shape()[1];
  AdamW optimizer(param_groups(*model, 0));
  const Tensor input = made_up_tokens(options, towers, tokens);
  Generator generator(2);
  std::vector<std::int64_t> classes(static_cast<std::size_t>(options.batch));
  for (std::int64_t& label : classes) label = generator.integer(0, model->num_classes());
  const Tensor labels = Tensor::from_vector(classes);

  std::int64_t steps = 0;
  double loss_value = 0;
  const auto step = [&] {
    const double start = seconds();
    ForwardContext context;
    context.training = true;
    context.step = steps++;
    const double share = 1.0 / static_cast<double>(options.batch);
    const Tensor loss = cross_entropy(model->forward(input, context), labels, {.reduction = Reduction::sum});
    loss_value = static_cast<double>(loss.item<float>()) * share;
    mul(loss, share).backward();
    const ProfilePhase phase("optimizer");
    optimizer.step({.lr = 1e-4, .beta1 = {}});
    optimizer.zero_grad();
    profile_mark("step");
    return seconds() - start;
  };
  step();
  step();
  const double peak = peak_resident_mib();  // before the ceiling's own matrices
  const Ceiling ceiling;
  const double flops = 3 * model_flops(*model, options.batch);
  const Paired paired = measure_pairs(ceiling, flops, common.pairs, step);
  if (options.profile) say_profile(ceiling, std::max(1, common.pairs), step);
  say(common.quiet,
      format("{} {}, {} x {} tokens: {:.1f} ms a step, {:.0f} GFLOP/s of {:.0f} ({:.2f}), peak {:.0f} MiB, loss {:.4f}",
             options.task, options.phi, options.batch, tokens, 1e3 * paired.seconds, paired.gflops,
             paired.ceiling_gflops, paired.ratio, peak, loss_value));
  return Report("lra_step")
      .add("task", options.task)
      .add("batch", options.batch)
      .add("tokens", tokens)
      .add("phi", options.phi)
      .add("scale", options.scale)
      .add("path", options.path)
      .add("dropout", options.dropout)
      .add("attention_dropout", options.attention_dropout)
      .add("step_ms", 1e3 * paired.seconds)
      .add("samples_per_s", static_cast<double>(options.batch) / paired.seconds)
      .add(paired)
      .add("peak_mib", peak)
      .add("loss", loss_value)
      .line();
}

}  // namespace polygrad::bench
