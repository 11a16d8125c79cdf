#include "apps/training/dry_run.h"

#include <algorithm>
#include <cmath>

#include <chrono>

#include "apps/training/evaluate.h"
#include "apps/training/host.h"
#include "apps/training/precision.h"
#include "apps/training/rehearsal.h"
#include "engine/format.h"
#include "engine/memory.h"
#include "engine/parallel.h"
#include "engine/version.h"
#include "models/summary.h"
#include "ops/gemm_provider.h"

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

// "labels 0 to 9, 10 of 10 classes"
std::string label_statistics(const Tensor& labels, std::int64_t classes) {
  std::vector<std::int64_t> values = labels.to_vector<std::int64_t>();
  std::sort(values.begin(), values.end());
  const std::int64_t low = values.front(), high = values.back();
  const auto distinct = std::unique(values.begin(), values.end()) - values.begin();
  return format("labels {} to {}, {} of {} classes", low, high, distinct, classes);
}

std::string host_line(Device device) {
  const HostInfo host = host_info();
  return format("polygrad {} ({}), {}; on {}: {}, {:.0f} MiB, {} threads, products by {}, device {}\n", version(),
                git_id(), compiler_text(), host.name, host.cpu, mib(static_cast<double>(host.memory_bytes)),
                num_threads(), to_string(gemm_provider()), to_string(device));
}

// What attention matrices take in a micro-batch: kept for the backward (materialised), or not (the other paths).
std::string attention_memory(const Model& model, std::int64_t batch) {
  double kept = 0, not_kept = 0;
  for (const Attention* layer : model.attention_layers()) {
    const std::int64_t keys = model.attention_tokens(*layer), queries = model.attention_queries(*layer);
    const double bytes =
        4.0 * static_cast<double>(batch * layer->heads()) * static_cast<double>(queries) * static_cast<double>(keys);
    (layer->choose(queries, keys).path == AttentionPath::materialised ? kept : not_kept) += bytes;
  }
  std::string text = format("attention matrices {:.1f} MiB", mib(kept));
  if (not_kept > 0) {
    text +=
        format(" (those of the tiled and linear paths are never stored; they would take {:.1f} MiB)", mib(not_kept));
  }
  return text;
}

}  // namespace

std::string dry_run(const Config& config, const std::string& init, const InitOptions& init_options) {
  Rehearsal rehearsal(config, 0);
  const Device device = rehearsal.device();
  const Precision precision = parse_precision(config.text("train.precision"), device);
  const Experiment& experiment = rehearsal.experiment();
  const Model& model = *experiment.model;
  const std::string loaded =
      init.empty() ? "" : init_weights(*experiment.model, init, init_options, experiment.train->class_names());
  const std::int64_t batch_size = config.integer("train.batch_size"), accumulate = config.integer("train.accumulate");

  std::string text = host_line(device);
  text += "settings that are not defaults: " + changed_settings(config) + "\n\n";
  text += "configuration\n" + config.json() + "\n\nlayers, for a batch of " + format("{}", batch_size) + "\n";
  text += summary_table(model, batch_size) + "\n" + attention_report(model) + "\n" +
          describe(rehearsal.optimizer().groups()) + "\n";
  if (!loaded.empty()) text += "weights: " + loaded + "\n";
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
  text += format("first batch: {}; {}\n",
                 batch->tokens.defined() ? token_statistics(batch->tokens) : image_statistics(batch->images),
                 label_statistics(batch->labels, experiment.train->classes()));

  // One step, measured: activations are what the peak holds beyond weights, gradients and moments.
  rehearsal.loader().start();
  const std::size_t before = memory_stats(device).bytes_in_use;
  reset_peak_memory(device);
  const auto begin = std::chrono::steady_clock::now();
  const StepResult step = rehearsal.step();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double weights = 4.0 * static_cast<double>(model.parameter_count());
  const double grown = static_cast<double>(memory_stats(device).peak_bytes_in_use - before);
  const double moments = static_cast<double>(memory_stats(device).bytes_in_use - before);
  text += format("\none training step: loss {:.4f} (chance level {:.4f}), gradient norm {:.4f}\n", step.loss,
                 std::log(static_cast<double>(model.num_classes())), step.grad_norm);
  const EvalResult eval = evaluate(
      model, std::make_shared<Subset>(experiment.val ? experiment.val : experiment.train, std::vector<std::int64_t>{0}),
      experiment.preprocessing, {.batch_size = batch_size, .precision = precision});
  text += format("one evaluation batch: loss {:.4f}\n", eval.loss);
  const std::int64_t total = rehearsal.total_steps();
  text += format("schedule: {} steps ({} an epoch) of {} samples ({} x {}), lr {:.3g} by {}\n", total,
                 rehearsal.steps_per_epoch(), batch_size * accumulate, accumulate, batch_size,
                 config.number("optimizer.lr"), config.text("schedule.name"));
  text += format(
      "operations: {:.3f} GFLOP of matrix products a training step; this one, the first, took {:.2f} s: the run's take "
      "at most about {:.0f} min, without evaluations\n",
      3e-9 * model_flops(model, batch_size) * static_cast<double>(accumulate), seconds,
      std::ceil(seconds * static_cast<double>(total) / 60));
  const double average = experiment.average ? weights : 0, activations = std::max(0.0, grown - moments - weights);
  text += format(
      "memory on {}: weights {:.1f} MiB, gradients {:.1f} MiB, optimizer {:.1f} MiB, averaged weights {:.1f} MiB, "
      "activations of a micro-batch {:.1f} MiB, of them {}; together {:.1f} MiB\n",
      to_string(device), mib(weights), mib(weights), mib(moments), mib(average), mib(activations),
      attention_memory(model, batch_size), mib(2 * weights + moments + average + activations));
  const double checkpoint = weights + moments + average;
  text += format("disk: {:.1f} MiB a checkpoint, {} of them and the best are kept (train.keep_last)\n", mib(checkpoint),
                 config.integer("train.keep_last"));
  return text;
}

}  // namespace polygrad
