#include "apps/training/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/training/checkpoint.h"
#include "apps/training/device.h"
#include "apps/training/precision.h"
#include "apps/training/probes.h"
#include "apps/training/resume.h"
#include "apps/training/train_step.h"
#include "data/loader.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/parallel.h"
#include "models/summary.h"
#include "models/weights.h"
#include "ops/gemm_provider.h"

namespace polygrad {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// Whether steps are captured; ConfigError where train.capture is on and they can't be.
bool wants_capture(const Config& config, const Model& model) {
  const std::string wish = config.text("train.capture");
  const std::string obstacle = capture_obstacle(model, config.integer("train.accumulate"));
  if (wish == "on" && !obstacle.empty()) throw ConfigError("[config] train.capture: on, but " + obstacle);
  return wish != "off" && obstacle.empty();
}

}  // namespace

struct Trainer::Run {
  Run(Config given, Experiment parts, TrainerOptions choices);
  TrainResult train(const Trainer& trainer, std::stop_token stop);

  Config config;
  Experiment experiment;
  TrainerOptions options;
  SingleProcess single;
  Communicator& communicator;
  std::optional<std::string> checkpoint;  // to go on from
  CheckpointInfo info;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Ema> ema;
  std::unique_ptr<Loader> loader;
  std::int64_t steps_per_epoch = 0, total = 0;
  std::optional<Schedule> schedule;
  std::optional<RunFolder> folder;
  MetricsLog log;
  Tensor probe_input;

 private:
  struct Clock {  // of the rows
    double started = now(), row = started, waited = 0;
    std::int64_t samples = 0, first_step = 0;
  };

  void load();
  void open_files();
  void report_start();
  void loop(const Trainer& trainer, const std::stop_token& stop);
  void write_train_row(const StepResult& step, double lr);
  void show_progress(const StepResult& step, double lr);
  bool evaluate_now(const Trainer& trainer);  // whether it is the best so far
  void warn_at_chance(const EvalInfo& eval);
  void probe_now();
  void save(bool best);
  TrainResult finish(const Trainer& trainer, bool done);
  std::optional<TrainResult> earlier_result() const;
  EvalResult measure(std::shared_ptr<const Dataset> part) const;
  void check_labels(const EvalResult& result);

  void say(const std::string& line) {
    if (options.progress.active()) {
      options.progress.message(line + "\n");  // above the line that is rewritten
    } else if (options.report) {
      options.report(line);
    }
  }
  double epoch_at(DataPosition position) const {
    return static_cast<double>(position.epoch) +
           static_cast<double>(position.batch) / static_cast<double>(loader->batches_per_epoch());
  }
  double seconds() const { return info.state.seconds + now() - clock.started; }
  bool every(const char* key, std::int64_t otherwise) const {
    const std::int64_t steps = config.integer_or(key, otherwise);
    return steps > 0 && info.state.step % steps == 0;
  }

  Clock clock;
  std::string lr_change;  // what an allowed change of the configuration does to the learning rate, for people
  bool full_marks = false, ran = false, labels_doubted = false, warned_at_chance = false;
  double last_loss = 0;  // of the last train row
  double chance = 0;     // percent: the most frequent class of what is validated on
  TrainStepOptions step_options;
  Device device;
  Precision precision = Precision::f32;
};

Trainer::Run::Run(Config given, Experiment parts, TrainerOptions choices)
    : config(std::move(given)),
      experiment(std::move(parts)),
      options(std::move(choices)),
      communicator(options.communicator ? *options.communicator : single) {
  device = choose_device(config);
  precision = parse_precision(config.text("train.precision"), device);
  checkpoint = find_resume(options.out, options.resume);
  if (options.overfit) {
    experiment.val = experiment.train;
    experiment.test = nullptr;
  }
  info.config = config;
  info.class_names = experiment.train->class_names();
  info.preprocessing = experiment.preprocessing;
  info.data_fingerprint = experiment.data_fingerprint;
  chance = chance_level(*(experiment.val && experiment.val->size() > 0 ? experiment.val : experiment.train));

  experiment.model->to(device);
  if (experiment.average) experiment.average->to(device);
  optimizer = build_optimizer(config, *experiment.model);
  if (experiment.average)
    ema = std::make_unique<Ema>(*experiment.average, *experiment.model, config.number("train.ema_decay"));
  const std::uint64_t seed = config.seed("seed");
  LoaderOptions loading = training_loader(config, experiment);
  loading.sampler.rank = communicator.rank();
  loading.sampler.world = communicator.world();
  loading.workers = static_cast<int>(config.integer("data.workers"));
  loader = std::make_unique<Loader>(experiment.train, std::move(loading));
  info.state.batches_per_epoch = loader->batches_per_epoch();
  step_options = {.seed = seed,
                  .accumulate = config.integer("train.accumulate"),
                  .clip_grad = config.number("train.clip_grad"),
                  .mix = experiment.mix,
                  .precision = precision,
                  .capture = wants_capture(config, *experiment.model),
                  .must_capture = config.text("train.capture") == "on"};
  steps_per_epoch = optimizer_steps(loader->batches_per_epoch(), step_options.accumulate);
  total = run_length(config, steps_per_epoch).steps;
  schedule = build_schedule(config, steps_per_epoch);
  load();
  synchronize(device);  // another thread may run, or read model()
}

void Trainer::Run::load() {
  if (checkpoint) {
    const CheckpointInfo old = read_checkpoint_info(*checkpoint);
    const double old_lr = build_schedule(old.config, steps_per_epoch).at(old.state.step).lr;
    const double new_lr = schedule->at(old.state.step).lr;
    if (old_lr != new_lr)
      lr_change = format("; the learning rate at step {} goes from {:.6g} to {:.6g}", old.state.step, old_lr, new_lr);
    check_same_run(old, config, info.data_fingerprint, options.allow_change, lr_change);
    load_checkpoint(*checkpoint, old, *experiment.model, *optimizer, ema.get());
    info.state = old.state;
    info.state.batches_per_epoch = loader->batches_per_epoch();
  } else if (!options.init.empty()) {
    load_weights(*experiment.model, options.init);
    if (ema) ema->import_state(experiment.model->state(), 0);
  }
}

// --- the run's files -----------------------------------------------------------------------------------------------

void Trainer::Run::open_files() {
  if (options.out.empty()) return;
  folder.emplace(options.out);
  folder->open();
  if (checkpoint) {
    const std::vector<std::int64_t> steps = folder->checkpoint_steps();
    if (!steps.empty() && steps.back() > info.state.step) {
      say(format("going back to step {}: later checkpoints and rows are removed", info.state.step));
      folder->discard_after(info.state.step);
    }
    const bool has_best = std::find(steps.begin(), steps.end(), info.state.best_step) != steps.end();
    if (info.state.best_top1 && !has_best) {
      // Going back to before a best that a later one has replaced: the next evaluation is the best again.
      info.state.best_top1.reset();
    } else if (info.state.best_top1 && folder->best_step() != info.state.best_step) {
      folder->link_best(info.state.best_step);  // a kill between saving the best checkpoint and switching the link
    }
  }
  log = MetricsLog(options.out, checkpoint ? std::optional<std::int64_t>(info.state.step) : std::nullopt);
  write_file_atomically(folder->file("config.json"), config.json());
}

void Trainer::Run::report_start() {
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
      .add("batch_size", config.integer("train.batch_size") * step_options.accumulate * communicator.world());
  log.write(row);
  say(format("model      {} with {} parameters, {} classes", config.text("model.name"),
             experiment.model->parameter_count(), experiment.model->num_classes()));
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
    say(format("machine    cpu, {} threads, products by {} in {}", num_threads(), to_string(gemm_provider()),
               to_string(precision)));
  }
  say(
      format("schedule   {} steps ({} an epoch) of {} x {} samples, lr {:.3g} by {}; chance level: loss {:.4f}, top-1 "
             "{:.2f} %",
             total, steps_per_epoch, step_options.accumulate, config.integer("train.batch_size"),
             config.number("optimizer.lr"), config.text("schedule.name"),
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

// --- the loop ------------------------------------------------------------------------------------------------------

TrainResult Trainer::Run::train(const Trainer& trainer, std::stop_token stop) {
  const std::int64_t threads = config.integer("threads");
  const NumThreadsGuard thread_guard(threads > 0 ? static_cast<int>(threads) : num_threads());
  const Tf32Guard tf32(config.flag("train.tf32"));
  if (ran) throw ValueError("[train] run() was called before; to go on, make a new Trainer with resume");
  ran = true;
  if (std::optional<TrainResult> earlier = earlier_result()) return *earlier;
  open_files();
  clock = Clock();
  try {
    report_start();
    loop(trainer, stop);
    return finish(trainer, info.state.step >= total || full_marks);
  } catch (const std::exception& error) {
    options.progress.finish();
    const bool diverged = dynamic_cast<const NumericError*>(&error) != nullptr;
    MetricsRow row("end");
    row.add("status", diverged ? "diverged" : "failed").add("step", info.state.step);
    row.add("best_top1", info.state.best_top1.value_or(std::nan("")))
        .add("seconds", seconds())
        .add("why", error.what());
    log.write(row);
    throw;
  }
}

void Trainer::Run::loop(const Trainer& trainer, const std::stop_token& stop) {
  TrainStep train_step(*experiment.model, *optimizer, ema.get(), *loader, communicator, step_options,
                       &info.state.loss_scale);
  loader->start(info.state.position);
  clock.waited = loader->wait_seconds();
  clock.first_step = info.state.step;
  if (info.state.step == 0) probe_now();
  bool saved = checkpoint.has_value();
  while (info.state.step < total && !full_marks && !stop.stop_requested()) {
    const ScheduleValue value = schedule->at(info.state.step);
    const StepResult step = train_step.run(info.state.step, info.state.position, value);
    ++info.state.step;
    info.state.position = step.next;
    if (ema) info.state.ema_updates = ema->updates();
    RunningMeans& means = info.state.since_row;
    means.loss_sum += step.loss;
    ++means.steps;
    means.correct += step.correct;
    means.counted += step.counted;
    clock.samples += step.samples;
    if (!step.not_captured.empty()) {
      say("warning    steps go on kernel by kernel, they could not be captured: " + step.not_captured);
    }
    if (step.skipped && info.state.loss_scale.skipped == 1) {
      say(format(
          "note       step {} was skipped, its gradients overflow f16: the loss scale goes to {:g}; metrics.jsonl "
          "counts such steps",
          info.state.step, info.state.loss_scale.scale));
    }
    show_progress(step, value.lr);
    if (trainer.on_step) {
      trainer.on_step({info.state.step, total, epoch_at(info.state.position), step.loss, value.lr, step.grad_norm});
    }
    const bool last = info.state.step == total;
    if (every("train.log_every_steps", steps_per_epoch) || last) write_train_row(step, value.lr);
    const double trained = now();
    bool best = false;
    if (every("train.eval_every_steps", steps_per_epoch) || last) best = evaluate_now(trainer);
    if (config.flag("probe.norms") && (every("probe.every_steps", steps_per_epoch) || last)) probe_now();
    saved = every("train.checkpoint_every_steps", steps_per_epoch) || last || best;
    if (saved) save(best);
    clock.row += now() - trained;  // samples_per_s is of training alone
  }
  options.progress.finish();
  if (!saved && info.state.step > 0) save(false);
}

void Trainer::Run::write_train_row(const StepResult& step, double lr) {
  const double time = now(), elapsed = std::max(time - clock.row, 1e-9), waited = loader->wait_seconds();
  RunningMeans& means = info.state.since_row;
  MetricsRow row("train");
  row.add("step", info.state.step).add("epoch", epoch_at(info.state.position));
  last_loss = means.loss_sum / static_cast<double>(means.steps);
  row.add("loss", last_loss).add("lr", lr).add("grad_norm", step.grad_norm);
  if (means.counted > 0)
    row.add("top1", 100.0 * static_cast<double>(means.correct) / static_cast<double>(means.counted));
  if (precision == Precision::f16) {
    row.add("loss_scale", info.state.loss_scale.scale).add("skipped_steps", info.state.loss_scale.skipped);
  }
  row.add("samples_per_s", static_cast<double>(clock.samples) / elapsed);
  row.add("data_wait", std::min(1.0, (waited - clock.waited) / elapsed));
  log.write(row);
  means = RunningMeans();
  clock.row = time;
  clock.samples = 0;
  clock.waited = waited;
}

void Trainer::Run::show_progress(const StepResult& step, double lr) {
  if (!options.progress.active()) return;
  const double time = now();
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
       .skipped = info.state.loss_scale.skipped,
       .samples_per_s = static_cast<double>(clock.samples) / std::max(time - clock.row, 1e-9),
       .seconds_left = static_cast<double>(total - info.state.step) * (time - clock.started) /
                       static_cast<double>(info.state.step - clock.first_step)},
      time);
}

EvalResult Trainer::Run::measure(std::shared_ptr<const Dataset> part) const {
  const bool average = config.text("eval.weights") == "ema" && experiment.average;
  return evaluate(average ? *experiment.average : *experiment.model, std::move(part), experiment.preprocessing,
                  {.batch_size = config.integer("train.batch_size"),
                   .workers = static_cast<int>(config.integer("data.workers")),
                   .drop_last = config.flag("eval.drop_last"),
                   .precision = precision,
                   .bad_sample = bad_sample_in_evaluation(config)});
}

// Labels of val that do not belong to its pictures look just so: the loss falls, and val stays at chance.
void Trainer::Run::check_labels(const EvalResult& result) {
  constexpr std::int64_t kFewClasses = 10;
  const std::int64_t classes = experiment.model->num_classes();
  if (labels_doubted || options.overfit || classes < kFewClasses || !(last_loss > 0)) return;
  const bool learned = last_loss < 0.6 * std::log(static_cast<double>(classes));
  if (!learned || result.top1 >= 150.0 / static_cast<double>(classes)) return;
  labels_doubted = true;
  say(
      format("warning    top-1 on val is {:.2f} % (chance is {:.2f} %) while the training loss has fallen to {:.2f}: "
             "the labels of val may not be those of train",
             result.top1, 100.0 / static_cast<double>(classes), last_loss));
}

bool Trainer::Run::evaluate_now(const Trainer& trainer) {
  if (!experiment.val || experiment.val->size() == 0) return false;
  EvalInfo eval{.split = "val",
                .step = info.state.step,
                .epoch = epoch_at(info.state.position),
                .result = measure(experiment.val)};
  // A loss that is not finite never wins, and a tie keeps the earlier one.
  eval.best = std::isfinite(eval.result.loss) && (!info.state.best_top1 || eval.result.top1 > *info.state.best_top1);
  if (eval.best) {
    info.state.best_top1 = eval.result.top1;
    info.state.best_step = eval.step;
  }
  full_marks = options.overfit && eval.result.top1 == 100;
  log.write(eval_row(eval.split, eval.step, eval.epoch, eval.result));
  say(format("epoch {:6.2f}  step {:6}  val loss {:.4f}  top-1 {:.2f} % (chance {:.2f}){}", eval.epoch, eval.step,
             eval.result.loss, eval.result.top1, chance, eval.best ? "  best" : ""));
  check_labels(eval.result);
  warn_at_chance(eval);
  if (trainer.on_eval) trainer.on_eval(eval);
  return eval.best;
}

// A run that has learned nothing yet may be at a plateau that ends, or at a fault that does not: said once.
void Trainer::Run::warn_at_chance(const EvalInfo& eval) {
  constexpr std::int64_t kPatience = 1000;
  constexpr double kDeviations = 2;
  const double share = chance / 100;
  const double noise = 100 * std::sqrt(share * (1 - share) / static_cast<double>(eval.result.count));
  if (warned_at_chance || eval.step < kPatience || eval.result.top1 > chance + kDeviations * noise) return;
  warned_at_chance = true;
  say(format(
      "warning    after {} steps top-1 is {:.2f} %, the chance level {:.2f} %: a plateau (Pathfinder's lasts for "
      "thousands of steps), a learning rate that does not fit, or data whose labels do not match; --overfit 32 "
      "tells a fault of the pipeline from a hard task",
      eval.step, eval.result.top1, chance));
}

void Trainer::Run::probe_now() {
  if (!config.flag("probe.norms")) return;
  if (!probe_input.defined()) {  // the same training images at every probe, prepared as for evaluation
    Loader images(experiment.train,
                  {.sampler = {.batch_size = std::min(config.integer("probe.samples"), experiment.train->size()),
                               .shuffle = false},
                   .bad_sample = experiment.bad_sample,
                   .transform = evaluation_transform(experiment.preprocessing)});
    probe_input = images.next()->input();
  }
  const double epoch = epoch_at(info.state.position);
  for (const LayerNorms& layer : probe_norms(*experiment.model, probe_input)) {
    log.write_norms(info.state.step, epoch, layer.layer, layer.heads);
    log.write(norms_row(layer, info.state.step, epoch));
  }
}

void Trainer::Run::save(bool best) {
  if (!folder) return;
  log.sync();
  CheckpointInfo saved = info;
  saved.state.seconds = seconds();
  save_checkpoint(*folder, saved, *experiment.model, *optimizer, ema.get());
  if (best) folder->link_best(info.state.step);
  folder->prune(config.integer("train.keep_last"));
}

// --- the end -------------------------------------------------------------------------------------------------------

TrainResult Trainer::Run::finish(const Trainer& trainer, bool done) {
  TrainResult result{.status = done ? "done" : "stopped",
                     .step = info.state.step,
                     .best_top1 = info.state.best_top1,
                     .best_step = info.state.best_step,
                     .seconds = seconds(),
                     .test = {}};
  if (done && experiment.test && experiment.test->size() > 0) {
    if (config.flag("eval.test_last") && folder && info.state.best_top1 && info.state.best_step != info.state.step) {
      const EvalResult last = measure(experiment.test);  // before the best weights are loaded
      log.write(eval_row("test", info.state.step, epoch_at(info.state.position), last).add("weights", "last"));
      say(format("test: loss {:.4f}  top-1 {:.2f} % of {} samples, with the last weights (step {})", last.loss,
                 last.top1, last.count, info.state.step));
    }
    // The one look at the test images: with the weights that validation chose.
    const bool best = folder && info.state.best_top1;
    if (best) {
      load_checkpoint_weights(folder->checkpoint_path(info.state.best_step), "raw", *experiment.model);
      if (experiment.average && config.text("eval.weights") == "ema") {
        load_checkpoint_weights(folder->checkpoint_path(info.state.best_step), "ema", *experiment.average);
      }
    }
    const std::int64_t step = best ? info.state.best_step : info.state.step;
    const EvalInfo eval{.split = "test",
                        .step = step,
                        .epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch),
                        .result = measure(experiment.test)};
    result.test = eval.result;
    log.write(eval_row(eval.split, eval.step, eval.epoch, eval.result));
    say(format("test: loss {:.4f}  top-1 {:.2f} % of {} samples, with the {} weights (step {})", eval.result.loss,
               eval.result.top1, eval.result.count, best ? "best" : "last", step));
    if (trainer.on_eval) trainer.on_eval(eval);
  }
  synchronize(device);  // another thread may read model()
  result.seconds = seconds();
  MetricsRow row("end");
  row.add("status", result.status).add("step", result.step).add("best_top1", result.best_top1.value_or(std::nan("")));
  row.add("seconds", result.seconds);
  if (precision == Precision::f16) {
    row.add("skipped_steps", info.state.loss_scale.skipped);
    say(format("f16        {} of {} steps were skipped, the loss scale is {:g}", info.state.loss_scale.skipped,
               result.step, info.state.loss_scale.scale));
  }
  if (const std::int64_t bad = loader->bad_samples(); bad > 0) {
    row.add("bad_images", bad);
    say(format("warning    {} training pictures could not be used and were replaced by others", bad));
  }
  log.write(row);
  log.sync();
  if (!log.trouble().empty())
    throw IoError("[train] the run is done and saved, but not all rows could be written: " + log.trouble());
  return result;
}

// Of a run that was finished before: its result as logged.
std::optional<TrainResult> Trainer::Run::earlier_result() const {
  if (!checkpoint || info.state.step < total) return std::nullopt;
  TrainResult result{.status = "done",
                     .step = info.state.step,
                     .best_top1 = info.state.best_top1,
                     .best_step = info.state.best_step,
                     .seconds = info.state.seconds,
                     .test = {},
                     .already_done = true};
  bool ended = false;
  for (const MetricsRow& row : read_metrics(RunFolder(options.out).file("metrics.jsonl"))) {
    const JsonValue* status = row.json().find("status");
    if (row.event() == "end" && row.step() == info.state.step && status && *status == JsonValue::text("done")) {
      ended = true;
      result.seconds = row.number("seconds");
    }
    const JsonValue* split = row.json().find("split");
    if (row.event() == "eval" && split && *split == JsonValue::text("test")) {
      result.test = EvalResult{.loss = row.number("loss"),
                               .top1 = row.number("top1"),
                               .top5 = row.number("top5"),
                               .count = static_cast<std::int64_t>(row.number("count"))};
    }
  }
  if (!ended) return std::nullopt;  // killed before its last rows: they are written now
  return result;
}

// --- the public face -----------------------------------------------------------------------------------------------

Trainer::Trainer(Config config, TrainerOptions options) {
  // What can be refused without reading the data is refused first.
  parse_precision(config.text("train.precision"), choose_device(config));
  std::string out = options.out;
  find_resume(out, options.resume);
  Experiment experiment = build_experiment(config);
  run_ = std::make_unique<Run>(std::move(config), std::move(experiment), std::move(options));
}

Trainer::Trainer(Config config, Experiment experiment, TrainerOptions options)
    : run_(std::make_unique<Run>(std::move(config), std::move(experiment), std::move(options))) {}

Trainer::~Trainer() = default;

TrainResult Trainer::run(std::stop_token stop) { return run_->train(*this, std::move(stop)); }
const Model& Trainer::model() const { return *run_->experiment.model; }
const Config& Trainer::config() const { return run_->config; }
const std::string& Trainer::folder() const { return run_->options.out; }

}  // namespace polygrad
