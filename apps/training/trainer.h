// Trainer: the training loop with everything around it: evaluation, best and latest checkpoints, exact resume, logs,
// probes, a stop that saves.
//
// Where this stands: the top of polygrad::training; vit_train's main and embedding applications run it.
//
//   Trainer trainer(Config::from_file("fashion_mnist"), {.out = "runs/mine"});
//   trainer.on_eval = [](const EvalInfo& eval) { ... };
//   const TrainResult result = trainer.run(stop_source.get_token());
//
// Read next: trainer_run.h (what a run is made of), trainer.cpp (the loop), train_step.h (one step), checkpoint.h (what
// is saved).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "apps/training/communicator.h"
#include "apps/training/evaluate.h"
#include "apps/training/experiment.h"
#include "apps/training/init_weights.h"
#include "apps/training/metrics_log.h"
#include "apps/training/progress.h"
#include "apps/training/run_folder.h"

namespace polygrad {

struct StepInfo {
  std::int64_t step = 0;  // optimizer steps done, this one included
  std::int64_t total_steps = 0;
  double epoch = 0;  // passes completed
  double loss = 0, lr = 0, grad_norm = 0;
};

struct EvalInfo {
  std::string split;  // "val" or "test"
  std::int64_t step = 0;
  double epoch = 0;
  EvalResult result;
  bool best = false;  // better than every earlier one
};

struct TrainResult {
  std::string status;  // "done" or "stopped"
  std::int64_t step = 0;
  std::optional<double> best_top1;  // percent, on val
  std::int64_t best_step = 0;
  double seconds = 0;              // wall time, over all resumes
  std::optional<EvalResult> test;  // of the best weights, where there is a test part and the run is done
  bool already_done = false;       // a finished run was asked to go on: nothing was trained
};

struct TrainerOptions {
  std::string out;  // the run folder; "": nothing is written, and there is neither best nor resume
  // "": a new run. "auto": the newest complete checkpoint of `out`, or a new run where there is none. Else a checkpoint
  // or a run folder, which the run goes on in (`out` is then that folder or empty).
  std::string resume = {};
  std::vector<std::string> allow_change = {};  // configuration keys that may differ from the checkpoint's
  std::string init = {};                       // weights to start a new run from: a file, a checkpoint or a run folder
  InitOptions init_options = {};
  // --overfit: validate on the training samples, leave the test samples alone, end as soon as all are right.
  bool overfit = false;
  std::string command = {};                           // that started the program, for the start report; "": not said
  std::function<void(std::string_view)> report = {};  // lines for people; empty: silent
  Progress progress = {};
  Communicator* communicator = nullptr;  // null: a single process
};

class Trainer {
 public:
  // Builds everything and touches no file yet. Throws ConfigError (also a changed configuration: the list old -> new),
  // DataError, DeviceError, IoError.
  Trainer(Config config, TrainerOptions options);
  // With data and model of the caller's.
  Trainer(Config config, Experiment experiment, TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  std::function<void(const StepInfo&)> on_step;
  std::function<void(const EvalInfo&)> on_eval;

  // Trains to the end, or until `stop` is requested: then the step under way is finished and a checkpoint written; an
  // evaluation or probe under way is given up, and the resume begins with it. Throws NumericError where training
  // diverged (the latest checkpoint is finite); IoError where the last checkpoint can't be written, and at the end of a
  // run that is done where an earlier one, a link, or rows of the log, could not be (each is tried again while the run
  // goes on; the log sink is told). Afterwards model() has the best weights where the run is done and was tested, else
  // the last ones.
  TrainResult run(std::stop_token stop = {});

  const Model& model() const;
  const Config& config() const;
  const std::string& folder() const;  // the run's; "" where nothing is written

 private:
  struct Run;
  std::unique_ptr<Run> run_;
};

}  // namespace polygrad
