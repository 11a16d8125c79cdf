#include "apps/training/dry_run.h"

#include <algorithm>
#include <cmath>

#include "apps/training/evaluate.h"
#include "apps/training/precision.h"
#include "apps/training/rehearsal.h"
#include "engine/format.h"
#include "engine/memory.h"
#include "models/summary.h"

namespace polygrad {

namespace {

double mib(double bytes) { return bytes / (1 << 20); }

std::string image_statistics(const Tensor& images) {
  const float* data = images.data<float>();
  const std::int64_t count = images.numel();
  double sum = 0, squares = 0;
  float low = data[0], high = data[0];
  for (std::int64_t i = 0; i < count; ++i) {
    sum += data[i];
    squares += static_cast<double>(data[i]) * data[i];
    low = std::min(low, data[i]);
    high = std::max(high, data[i]);
  }
  const double mean = sum / static_cast<double>(count);
  return format("images {}: mean {:.4f}, std {:.4f}, range [{:.3f}, {:.3f}]", to_string(images.shape()), mean,
                std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean * mean)), low, high);
}

std::string token_statistics(const Tensor& tokens) {
  const std::vector<std::int64_t> ids = tokens.to_vector<std::int64_t>();
  const auto there = std::count_if(ids.begin(), ids.end(), [](std::int64_t id) { return id != kNoToken; });
  const std::int64_t largest = *std::max_element(ids.begin(), ids.end());
  return format("tokens {} (samples, towers, longest): {} of {} places filled, ids up to {}", to_string(tokens.shape()),
                there, ids.size(), largest);
}

std::string class_table(const Dataset& dataset) {
  const std::vector<std::int64_t> counts = class_counts(dataset);
  std::string text;
  for (std::size_t c = 0; c < std::min<std::size_t>(counts.size(), 20); ++c) {
    text += format("  {:<16} {}\n", dataset.class_names()[c], counts[c]);
  }
  if (counts.size() > 20) text += format("  ... {} classes in all\n", counts.size());
  return text;
}

}  // namespace

std::string dry_run(const Config& config) {
  Rehearsal rehearsal(config, 0);
  const Device device = rehearsal.device();
  const Precision precision = parse_precision(config.text("train.precision"), device);
  const Experiment& experiment = rehearsal.experiment();
  const Model& model = *experiment.model;
  const std::int64_t batch_size = config.integer("train.batch_size"), accumulate = config.integer("train.accumulate");

  std::string text =
      "configuration\n" + config.json() + "\n\nlayers, for a batch of " + format("{}", batch_size) + "\n";
  text += summary_table(model, batch_size) + "\n" + attention_report(model) + "\n" +
          describe(rehearsal.optimizer().groups()) + "\n";
  const Preprocessing& input = experiment.preprocessing;
  const std::string what = input.of_tokens()
                               ? format("sequences of up to {} tokens ({})", input.length, input.vocabulary)
                               : format("images of {} x {} x {}", input.channels, input.height, input.width);
  text += format("\ndata: {} training, {} validation, {} test {}, {} classes\n", experiment.train->size(),
                 experiment.val ? experiment.val->size() : 0, experiment.test ? experiment.test->size() : 0, what,
                 experiment.train->classes());
  text += experiment.data_report;
  for (const std::string& habit : reference_habits(config)) text += "as the reference: " + habit + "\n";
  text += class_table(*experiment.train);
  const std::optional<Batch> batch = rehearsal.loader().next();
  text += format("first batch: {}\n",
                 batch->tokens.defined() ? token_statistics(batch->tokens) : image_statistics(batch->images));

  // One step, measured: activations are what the peak holds beyond weights, gradients and moments.
  rehearsal.loader().start();
  const std::size_t before = memory_stats(device).bytes_in_use;
  reset_peak_memory(device);
  const StepResult step = rehearsal.step();
  const double weights = 4.0 * static_cast<double>(model.parameter_count());
  const double grown = static_cast<double>(memory_stats(device).peak_bytes_in_use - before);
  const double moments = static_cast<double>(memory_stats(device).bytes_in_use - before);
  double stored_maps = 0;  // what attention matrices would take if they were kept
  for (const Attention* layer : model.attention_layers()) {
    const double tokens = static_cast<double>(model.attention_tokens(*layer));
    stored_maps += 4.0 * static_cast<double>(batch_size) * static_cast<double>(layer->heads()) * tokens * tokens;
  }
  text += format("\none training step: loss {:.4f} (chance level {:.4f}), gradient norm {:.4f}\n", step.loss,
                 std::log(static_cast<double>(model.num_classes())), step.grad_norm);
  const EvalResult eval = evaluate(
      model, std::make_shared<Subset>(experiment.val ? experiment.val : experiment.train, std::vector<std::int64_t>{0}),
      experiment.preprocessing, {.batch_size = batch_size, .precision = precision});
  text += format("one evaluation batch: loss {:.4f}\n", eval.loss);
  text += format("operations: {:.3f} GFLOP of matrix products a training step, {} steps ({} an epoch)\n",
                 3e-9 * model_flops(model, batch_size) * static_cast<double>(accumulate), rehearsal.total_steps(),
                 rehearsal.steps_per_epoch());
  text += format(
      "memory on {}: weights {:.1f} MiB, gradients {:.1f} MiB, optimizer {:.1f} MiB, activations of a micro-batch "
      "{:.1f} "
      "MiB; "
      "attention matrices are not kept (they would take {:.1f} MiB)\n",
      to_string(device), mib(weights), mib(weights), mib(moments), mib(std::max(0.0, grown - moments - weights)),
      mib(stored_maps));
  return text;
}

}  // namespace polygrad
