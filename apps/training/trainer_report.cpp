#include <algorithm>
#include <cmath>

#include "apps/training/device.h"
#include "apps/training/host.h"
#include "apps/training/trainer_run.h"
#include "engine/format.h"
#include "engine/parallel.h"
#include "engine/version.h"
#include "models/summary.h"
#include "ops/gemm_provider.h"

namespace polygrad {

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

void Trainer::Run::report_start() {
  const HostInfo host = host_info();
  const std::int64_t step_samples = config.integer("train.batch_size") * step_options.accumulate * communicator.world();
  MetricsRow row("start");
  row.add("step", info.state.step)
      .add("params", experiment.model->parameter_count())
      .add("device", to_string(device))
      .add("device_name", device_name(device))
      .add("threads", num_threads())
      .add("gemm", to_string(gemm_provider()))
      .add("precision", to_string(precision))
      .add("tf32", device.type == DeviceType::cuda && config.flag("train.tf32"))
      .add("seed", step_options.seed)
      .add("train_samples", experiment.train->size())
      .add("val_samples", experiment.val ? experiment.val->size() : 0)
      .add("test_samples", experiment.test ? experiment.test->size() : 0)
      .add("total_steps", total)
      .add("batch_size", step_samples)
      .add("accumulate", step_options.accumulate)
      .add("lr", config.number("optimizer.lr"))
      .add("version", version())
      .add("git", git_id())
      .add("compiler", compiler_text())
      .add("host", host.name)
      .add("cpu", host.cpu)
      .add("memory_mib", host.memory_bytes >> 20)
      .add("time", utc_time())
      .add("settings", changed_settings(config));
  if (!options.command.empty()) row.add("command", options.command);
  log.write(row);
  say(format("polygrad   {} ({}), {}; {} on {}", version(), git_id(), compiler_text(), utc_time(), host.name));
  if (!options.command.empty()) say("command    " + options.command);
  if (const std::string settings = changed_settings(config); !settings.empty()) say("settings   " + settings);
  say(format("model      {} with {} parameters, {} classes", config.text("model.name"),
             experiment.model->parameter_count(), experiment.model->num_classes()));
  if (!init_report.empty()) say("weights    " + init_report);
  say(attention_report(*experiment.model));
  say(describe(optimizer->groups()));
  say(format("data       {} training, {} validation, {} test {}", experiment.train->size(),
             experiment.val ? experiment.val->size() : 0, experiment.test ? experiment.test->size() : 0,
             experiment.preprocessing.of_tokens() ? "sequences" : "images"));
  for (const std::string& line : lines_of(experiment.data_report)) say("           " + line);
  for (std::size_t i = 0; i < std::min<std::size_t>(experiment.data_notes.size(), 10); ++i) {
    say("note       " + experiment.data_notes[i]);
  }
  if (experiment.data_notes.size() > 10) {
    say(format("note       and {} more; --check-data lists them", experiment.data_notes.size() - 10));
  }
  for (const std::string& habit : reference_habits(config)) say("reference  " + habit);
  if (device.type == DeviceType::cuda) {
    say(format("machine    {} ({}), {} threads for the data, products by cuBLASLt in {}{}", to_string(device),
               device_name(device), num_threads(), to_string(precision),
               config.flag("train.tf32") ? ", TF32 where f32 is multiplied (train.tf32)" : ""));
    const std::string obstacle = capture_obstacle(*experiment.model, step_options.accumulate);
    say("steps      " + (step_options.capture ? std::string("captured as a CUDA graph")
                         : obstacle.empty()   ? std::string("kernel by kernel (train.capture=off)")
                                              : "kernel by kernel: " + obstacle));
  } else {
    say(format("machine    cpu ({}, {} MiB), {} threads, products by {} in {}", host.cpu, host.memory_bytes >> 20,
               num_threads(), to_string(gemm_provider()), to_string(precision)));
  }
  const ScheduleConfig& plan = schedule->config();
  const std::string warmup =
      plan.warmup_steps > 0 ? format(" after {} steps of warm-up from {:.3g}", plan.warmup_steps, schedule->at(0).lr)
                            : "";
  say(
      format("schedule   {} steps ({} an epoch) of {} samples ({} x {}), lr {:.3g} by {}{}; chance level: loss {:.4f}, "
             "top-1 {:.2f} %",
             total, steps_per_epoch, step_samples, step_options.accumulate, config.integer("train.batch_size"),
             config.number("optimizer.lr"), config.text("schedule.name"), warmup,
             std::log(static_cast<double>(experiment.model->num_classes())), chance));
  if (!lr_change.empty()) say("changed    " + lr_change.substr(2));
  if (folder) {
    say(format("run folder {}{}", folder->path(),
               checkpoint ? format(", going on from step {}", info.state.step) : std::string()));
    std::uint64_t bytes = 0;
    for (const auto& [name, tensor] : experiment.model->state())
      bytes += static_cast<std::uint64_t>(tensor.numel()) * 4;
    const std::uint64_t wanted =
        bytes * (ema ? 4 : 3) * static_cast<std::uint64_t>(config.integer("train.keep_last") + 2);
    if (folder->free_bytes() < wanted) {
      say(format("warning    {} MiB free where checkpoints may need {} MiB", folder->free_bytes() >> 20, wanted >> 20));
    }
  }
}

void Trainer::Run::write_train_row(const StepResult& step, double lr) {
  const double time = monotonic_seconds(), elapsed = std::max(time - clock.row, 1e-9), waited = loader->wait_seconds();
  RunningMeans& means = info.state.since_row;
  MetricsRow row("train");
  row.add("step", info.state.step).add("epoch", epoch_at(info.state.position));
  last_row = {.loss = means.loss_sum / static_cast<double>(means.steps), .counted = means.counted};
  row.add("loss", last_row.loss).add("lr", lr).add("grad_norm", step.grad_norm);
  if (means.counted > 0) {
    last_row.top1 = 100.0 * static_cast<double>(means.correct) / static_cast<double>(means.counted);
    row.add("top1", last_row.top1);
  }
  if (precision == Precision::f16) row.add("loss_scale", info.state.loss_scale.scale);
  if (may_skip()) row.add("skipped_steps", info.state.skipped.total);
  row.add("samples_per_s", static_cast<double>(clock.samples) / elapsed);
  row.add("data_wait", std::min(1.0, (waited - clock.waited) / elapsed));
  log.write(row);
  means = RunningMeans();
  clock.row = time;
  clock.samples = 0;
  clock.waited = waited;
}

void Trainer::Run::report_skipped(const StepResult& step) {
  if (info.state.skipped.total != 1) return;  // metrics.jsonl counts them
  const bool overflow = precision == Precision::f16 && std::isfinite(step.loss);
  const std::string what =
      overflow ? format("its gradients overflow f16: the loss scale goes to {:g}", info.state.loss_scale.scale)
               : format("loss {:.4g}, gradient norm {:.4g} (train.on_divergence=skip)", step.loss, step.grad_norm);
  say(format("note       step {} was skipped, {}; metrics.jsonl counts such steps", info.state.step, what));
}

void Trainer::Run::show_progress(const StepResult& step, double lr) {
  if (!options.progress.active()) return;
  const double time = monotonic_seconds();
  options.progress.update(
      {.step = info.state.step,
       .total_steps = total,
       .epoch = epoch_at(info.state.position),
       .epochs = static_cast<double>(total) / static_cast<double>(steps_per_epoch),
       .loss = step.loss,
       .accuracy = step.counted > 0 ? 100.0 * static_cast<double>(step.correct) / static_cast<double>(step.counted)
                                    : std::nan(""),
       .lr = lr,
       .grad_norm = step.grad_norm,
       .skipped = info.state.skipped.total,
       .samples_per_s = static_cast<double>(clock.samples) / std::max(time - clock.row, 1e-9),
       .seconds_left = static_cast<double>(total - info.state.step) * (time - clock.started) /
                       static_cast<double>(info.state.step - clock.first_step)},
      time);
}

}  // namespace polygrad
