#include <cmath>

#include "apps/training/probes.h"
#include "apps/training/trainer_run.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

EvalResult Trainer::Run::measure(std::shared_ptr<const Dataset> part, const std::stop_token& stop) const {
  const bool average = config.text("eval.weights") == "ema" && experiment.average;
  return evaluate(average ? *experiment.average : *experiment.model, std::move(part), experiment.preprocessing,
                  {.batch_size = config.integer("train.batch_size"),
                   .workers = static_cast<int>(config.integer("data.workers")),
                   .drop_last = config.flag("eval.drop_last"),
                   .precision = precision,
                   .bad_sample = bad_sample_in_evaluation(config),
                   .stop = stop});
}

std::optional<bool> Trainer::Run::evaluate_now(const Trainer& trainer, const std::stop_token& stop) {
  if (!experiment.val || experiment.val->size() == 0) return false;
  EvalInfo eval{.split = "val",
                .step = info.state.step,
                .epoch = epoch_at(info.state.position),
                .result = measure(experiment.val, stop)};
  if (eval.result.stopped) return std::nullopt;
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
  for (const std::string& warning : health.after_evaluation(eval.step, eval.result, last_row)) say(warning);
  if (trainer.on_eval) trainer.on_eval(eval);
  return eval.best;
}

bool Trainer::Run::probe_now(const std::stop_token& stop) {
  if (!probe_input.defined()) {  // the same training images at every probe, prepared as for evaluation
    Loader images(experiment.train,
                  {.sampler = {.batch_size = std::min(config.integer("probe.samples"), experiment.train->size()),
                               .shuffle = false},
                   .bad_sample = experiment.bad_sample,
                   .transform = evaluation_transform(experiment.preprocessing)});
    probe_input = images.next()->input();
  }
  if (!maps.empty() && folder && !write_maps_now(stop)) return false;
  if (!config.flag("probe.norms")) return true;
  const double epoch = epoch_at(info.state.position);
  const std::vector<LayerNorms> layers = probe_norms(*experiment.model, probe_input, stop);
  for (const LayerNorms& layer : layers) {
    log.write_norms(info.state.step, epoch, layer.layer, layer.heads);
    log.write(norms_row(layer, info.state.step, epoch));
  }
  return !layers.empty() || !stop.stop_requested();
}

// A picture that finds no room does not end a run.
bool Trainer::Run::write_maps_now(const std::stop_token& stop) {
  try {
    return write_maps(options.out, info.state.step, *experiment.model, probe_input, experiment.preprocessing, maps,
                      stop);
  } catch (const IoError& error) {
    if (!maps_failed) say(format("warning    attention maps are missing: {}", error.what()));
    maps_failed = true;
    return true;
  }
}

// --- the end -------------------------------------------------------------------------------------------------------

MetricsRow Trainer::Run::end_row(const std::string& status) const {
  MetricsRow row("end");
  row.add("status", status).add("step", info.state.step);
  row.add("best_top1", info.state.best_top1.value_or(std::nan("")));
  row.add("best_step", info.state.best_top1 ? info.state.best_step : 0);
  row.add("seconds", seconds());
  if (may_skip()) row.add("skipped_steps", info.state.skipped.total);
  return row;
}

TrainResult Trainer::Run::finish(const Trainer& trainer, const std::stop_token& stop, bool done) {
  TrainResult result{.status = done ? "done" : "stopped",
                     .step = info.state.step,
                     .best_top1 = info.state.best_top1,
                     .best_step = info.state.best_step,
                     .seconds = seconds(),
                     .test = {}};
  if (done && experiment.test && experiment.test->size() > 0) {
    if (config.flag("eval.test_last") && folder && info.state.best_top1 && info.state.best_step != info.state.step) {
      const EvalResult last = measure(experiment.test, stop);  // before the best weights are loaded
      if (!last.stopped) {
        log.write(eval_row("test", info.state.step, epoch_at(info.state.position), last).add("weights", "last"));
        say(format("test: loss {:.4f}  top-1 {:.2f} % of {} samples, with the last weights (step {})", last.loss,
                   last.top1, last.count, info.state.step));
      }
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
                        .result = measure(experiment.test, stop)};
    if (eval.result.stopped) {
      result.status = "stopped";  // the resume looks at the test samples
    } else {
      result.test = eval.result;
      log.write(eval_row(eval.split, eval.step, eval.epoch, eval.result));
      say(format("test: loss {:.4f}  top-1 {:.2f} % of {} samples, with the {} weights (step {})", eval.result.loss,
                 eval.result.top1, eval.result.count, best ? "best" : "last", step));
      if (trainer.on_eval) trainer.on_eval(eval);
    }
  }
  synchronize(device);  // another thread may read model()
  result.seconds = seconds();
  MetricsRow row = end_row(result.status);
  if (may_skip()) {
    const std::string scale =
        precision == Precision::f16 ? format("; the loss scale is {:g}", info.state.loss_scale.scale) : "";
    say(format("skipped    {} of {} steps{}", info.state.skipped.total, result.step, scale));
  }
  if (const std::int64_t bad = loader->bad_samples(); bad > 0) {
    row.add("bad_images", bad);
    say(format("warning    {} training pictures could not be used and were replaced by others", bad));
  }
  log.write(row);
  log.sync();
  return result;
}

// A run that came to its end with something lost on the way is no success: the program says so, and so does its exit
// code.
void Trainer::Run::complain(const TrainResult& result) const {
  if (!log.trouble().empty()) {
    throw IoError(
        format("[train] the run is {} and saved, but not all rows could be written: {}", result.status, log.trouble()));
  }
  if (failed_saves > 0 && result.status == "done") {
    throw IoError(format("[train] the run is done and its last checkpoint is saved, but {} before it could not be: {}",
                         failed_saves, save_trouble));
  }
  if (save_not_finished && result.status == "done") {
    throw IoError(format("[train] the run is done and saved, but what follows its last save is not: {}", save_trouble));
  }
}

// Of a run that was finished before: its result as logged.
std::optional<TrainResult> Trainer::Run::earlier_result() const {
  if (!checkpoint || (info.state.step < total && !full_marks)) return std::nullopt;
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
    if (row.event() == "start") {  // the run went on from there
      ended = false;
      result.test.reset();
    }
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
  if (!ended) return std::nullopt;  // killed before its last rows, or made longer since: they are written now
  return result;
}

}  // namespace polygrad
