// Trainer::Run: what a Trainer holds and does. Private to the files of the trainer.
//
//   trainer.cpp           what a run is made of, where it begins, the loop, the saves
//   trainer_report.cpp    what it says: the start, the rows of training, the line of progress
//   trainer_evaluate.cpp  what it measures: validation, probes, the look at the test samples at the end
//
// Where this stands: behind trainer.h. Read next: trainer.cpp.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "apps/training/health.h"
#include "apps/training/maps.h"
#include "apps/training/train_step.h"
#include "apps/training/trainer.h"
#include "data/loader.h"

namespace polygrad {

// Of a clock that never goes back.
double monotonic_seconds();

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
  std::vector<MapRequest> maps;  // written at each probe

 private:
  struct Clock {  // of the rows
    double started = monotonic_seconds(), row = started, waited = 0;
    std::int64_t samples = 0, first_step = 0;
  };

  void load();
  void open_files();
  void report_start();
  void loop(const Trainer& trainer, const std::stop_token& stop);
  void write_train_row(const StepResult& step, double lr);
  void report_skipped(const StepResult& step);
  bool may_skip() const { return precision == Precision::f16 || step_options.max_skipped > 0; }
  void show_progress(const StepResult& step, double lr);
  bool close_step(const Trainer& trainer, const std::stop_token& stop, Pending due);
  Pending due_now() const;
  bool probe_due() const;
  // Whether it is the best so far; nothing where a stop cut it off.
  std::optional<bool> evaluate_now(const Trainer& trainer, const std::stop_token& stop);
  bool has_probes() const { return config.flag("probe.norms") || !maps.empty(); }
  bool probe_now(const std::stop_token& stop);       // false where a stop cut it off
  bool write_maps_now(const std::stop_token& stop);  // the same
  bool save();
  MetricsRow end_row(const std::string& status) const;
  void complain(const TrainResult& result) const;
  TrainResult finish(const Trainer& trainer, const std::stop_token& stop, bool done);
  std::optional<TrainResult> earlier_result() const;
  EvalResult measure(std::shared_ptr<const Dataset> part, const std::stop_token& stop) const;

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
  double seconds() const { return info.state.seconds + monotonic_seconds() - clock.started; }
  bool every(const char* key, std::int64_t otherwise) const {
    const std::int64_t steps = config.integer_or(key, otherwise);
    return steps > 0 && info.state.step % steps == 0;
  }

  Clock clock;
  std::string init_report;  // what was loaded into a new run's model, for people
  std::string lr_change;    // what an allowed change of the configuration does to the learning rate, for people
  bool full_marks = false, ran = false, maps_failed = false;
  bool save_not_finished = false;  // the last checkpoint is there, but not its links, or too many older ones are
  std::int64_t failed_saves = 0, failed_step = -1;
  std::string save_trouble;                // of the last one that failed
  double last_lr = 0, last_grad_norm = 0;  // of the last step
  TrainingRow last_row;
  double chance = 0;  // percent: the most frequent class of what is validated on
  Health health;
  TrainStepOptions step_options;
  Device device;
  Precision precision = Precision::f32;
};

}  // namespace polygrad
