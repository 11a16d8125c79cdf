#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/training/checkpoint.h"
#include "apps/training/device.h"
#include "apps/training/precision.h"
#include "apps/training/resume.h"
#include "apps/training/trainer_run.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"
#include "engine/log.h"
#include "engine/parallel.h"

namespace polygrad {

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

namespace {

// Whether steps are captured; ConfigError where train.capture is on and they can't be.
bool wants_capture(const Config& config, const Model& model) {
  const std::string wish = config.text("train.capture");
  const std::string obstacle = capture_obstacle(model, config.integer("train.accumulate"));
  if (wish == "on" && !obstacle.empty()) throw ConfigError("[config] train.capture: on, but " + obstacle);
  return wish != "off" && obstacle.empty();
}

}  // namespace

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
  maps = map_requests(config, *experiment.model);
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
                  .max_skipped = config.text("train.on_divergence") == "skip" ? config.integer("train.max_skipped") : 0,
                  .mix = experiment.mix,
                  .precision = precision,
                  .capture = wants_capture(config, *experiment.model),
                  .must_capture = config.text("train.capture") == "on"};
  steps_per_epoch = optimizer_steps(loader->batches_per_epoch(), step_options.accumulate);
  total = run_length(config, steps_per_epoch).steps;
  schedule = build_schedule(config, steps_per_epoch);
  health = Health({.chance = chance,
                   .classes = experiment.model->num_classes(),
                   .overfit = options.overfit,
                   .total_steps = total,
                   .warmup_steps = schedule->config().warmup_steps});
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
    check_finite_weights(*experiment.model, *checkpoint);
    info.state = old.state;
    info.state.batches_per_epoch = loader->batches_per_epoch();
    full_marks = options.overfit && info.state.best_top1 == 100;
  } else if (!options.init.empty()) {
    init_report = init_weights(*experiment.model, options.init, options.init_options, info.class_names);
    if (ema) ema->import_state(experiment.model->state(), 0);
  }
}

// --- the run's files -----------------------------------------------------------------------------------------------

void Trainer::Run::open_files() {
  if (options.out.empty()) return;
  folder.emplace(options.out);
  folder->open();
  if (checkpoint) {
    if (folder->discard_after(info.state.step)) {
      say(format("going back to step {}: later checkpoints and rows were removed", info.state.step));
    }
    const std::vector<std::int64_t> steps = folder->checkpoint_steps();
    const bool has_best = std::find(steps.begin(), steps.end(), info.state.best_step) != steps.end();
    if (info.state.best_top1 && !has_best) {
      // Going back to before a best that a later one has replaced: the next evaluation is the best again.
      info.state.best_top1.reset();
    } else if (info.state.best_top1 && folder->best_step() != info.state.best_step) {
      folder->link_best(info.state.best_step);  // a kill between saving the best checkpoint and switching the link
    }
  }
  const Pending pending = info.state.pending;
  std::vector<std::string> redone;
  if (pending != Pending::none) redone.push_back("norms");
  if (pending == Pending::evaluation) redone.push_back("eval");
  log = MetricsLog(options.out, checkpoint ? std::optional<std::int64_t>(info.state.step) : std::nullopt, redone,
                   config.flag("train.tensorboard"));
  discard_maps_after(options.out, checkpoint ? info.state.step : -1);
  write_file_atomically(folder->file("config.json"), config.json());
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
  TrainResult result;
  try {
    report_start();
    loop(trainer, stop);
    result = finish(trainer, stop, info.state.pending == Pending::none && (info.state.step >= total || full_marks));
  } catch (const std::exception& error) {
    options.progress.finish();
    const bool diverged = dynamic_cast<const NumericError*>(&error) != nullptr;
    log.write(end_row(diverged ? "diverged" : "failed").add("why", error.what()));
    throw;
  }
  complain(result);
  return result;
}

void Trainer::Run::loop(const Trainer& trainer, const std::stop_token& stop) {
  TrainStep train_step(*experiment.model, *optimizer, ema.get(), *loader, communicator, step_options,
                       info.state.skipped, &info.state.loss_scale);
  loader->start(info.state.position);
  clock.waited = loader->wait_seconds();
  clock.first_step = info.state.step;
  if (info.state.step == 0 && has_probes()) probe_now(stop);
  bool saved = checkpoint.has_value();
  if (info.state.pending != Pending::none) {
    saved = close_step(trainer, stop, info.state.pending);
    clock.row = monotonic_seconds();
  }
  while (info.state.step < total && !full_marks && !stop.stop_requested()) {
    const ScheduleValue value = schedule->at(info.state.step);
    const StepResult step = train_step.run(info.state.step, info.state.position, value);
    last_lr = value.lr;
    last_grad_norm = step.grad_norm;
    ++info.state.step;
    info.state.position = step.next;
    if (ema) info.state.ema_updates = ema->updates();
    info.state.since_row.add(step.loss, step.correct, step.counted);
    clock.samples += step.samples;
    if (!step.not_captured.empty()) {
      say("warning    steps go on kernel by kernel, they could not be captured: " + step.not_captured);
    }
    if (step.skipped) report_skipped(step);
    if (info.state.step == 1 && options.init.empty()) {
      for (const std::string& warning : health.after_first_step(step.loss, step.samples)) say(warning);
    }
    show_progress(step, value.lr);
    if (trainer.on_step) {
      trainer.on_step({info.state.step, total, epoch_at(info.state.position), step.loss, value.lr, step.grad_norm});
    }
    const bool last = info.state.step == total;
    if (every("train.log_every_steps", steps_per_epoch) || last) write_train_row(step, value.lr);
    const double trained = monotonic_seconds();
    saved = close_step(trainer, stop, due_now());
    clock.row += monotonic_seconds() - trained;  // samples_per_s is of training alone
  }
  options.progress.finish();
  if (saved || info.state.step == 0) return;
  if (failed_step != info.state.step && save()) return;
  const bool none = folder->checkpoint_steps().empty();
  throw IoError(format("[train] the last checkpoint, of step {}, could not be saved: {}; --resume auto goes on from {}",
                       info.state.step, save_trouble, none ? "the start" : "the newest one that is there"));
}

// What the configuration wants done behind this step.
Pending Trainer::Run::due_now() const {
  const bool last = info.state.step == total;
  if (every("train.eval_every_steps", steps_per_epoch) || last) return Pending::evaluation;
  return probe_due() ? Pending::probe : Pending::none;
}

bool Trainer::Run::probe_due() const {
  return has_probes() && (every("probe.every_steps", steps_per_epoch) || info.state.step == total);
}

// Evaluation, probe and checkpoint behind a step. A stop cuts them off: what is left stands in the checkpoint, and the
// resume begins with it, so that its rows are those of a run that was never stopped. Returns whether the step is saved.
bool Trainer::Run::close_step(const Trainer& trainer, const std::stop_token& stop, Pending due) {
  const bool last = info.state.step == total;
  const std::optional<double> best_before = info.state.best_top1;
  const std::int64_t best_step_before = info.state.best_step;
  bool best = false;
  info.state.pending = due;
  if (info.state.pending == Pending::evaluation) {
    if (const std::optional<bool> evaluated = evaluate_now(trainer, stop)) {
      best = *evaluated;
      info.state.pending = probe_due() ? Pending::probe : Pending::none;
    }
  }
  if (info.state.pending == Pending::probe && probe_now(stop)) info.state.pending = Pending::none;
  const bool cut = info.state.pending != Pending::none;
  if (!every("train.checkpoint_every_steps", steps_per_epoch) && !last && !best && !cut) return false;
  const auto forget_best = [&] {  // the best is one that can be loaded
    info.state.best_top1 = best_before;
    info.state.best_step = best_step_before;
  };
  try {
    if (save()) return true;
  } catch (const NumericError&) {
    forget_best();
    throw;
  }
  forget_best();
  return false;
}

// A save that fails ends nothing: it is said, and the next one is tried when it is due. False where there is no
// checkpoint of this step.
bool Trainer::Run::save() {
  if (!folder) return true;
  bool saved = false;
  save_not_finished = false;
  try {
    log.sync();
    CheckpointInfo now = info;
    now.state.seconds = seconds();
    save_checkpoint(*folder, now, *experiment.model, *optimizer, ema.get());
    saved = true;
    if (info.state.best_top1 && folder->best_step() != info.state.best_step) folder->link_best(info.state.best_step);
    folder->prune(config.integer("train.keep_last"));
  } catch (const NumericError& error) {  // the update of the last step overflowed
    throw NumericError(divergence(info.state.step, "the weights or moments after it can't be saved", last_lr,
                                  last_grad_norm, error.what(), "lower the learning rate"));
  } catch (const IoError& error) {
    if (!saved) {
      ++failed_saves;
      failed_step = info.state.step;
    }
    save_not_finished = saved;
    save_trouble = error.what();
    options.progress.finish();
    log_message(LogLevel::error,
                format("[train] the checkpoint of step {} {}: {}", info.state.step,
                       saved                      ? "is saved, but what follows a save is not done"
                       : info.state.step == total ? "could not be saved"
                                                  : "could not be saved, the next is tried when it is due",
                       save_trouble));
  }
  return saved;
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
