// Rehearsal: the training steps of a run, without the run: no files, no logs, no evaluation.
//
// Where this stands: below dry_run.h and profile_run.h, beside trainer.h; both build on experiment.h and train_step.h.
#pragma once

#include <memory>
#include <optional>

#include "apps/training/communicator.h"
#include "apps/training/config.h"
#include "apps/training/device.h"
#include "apps/training/experiment.h"
#include "apps/training/train_step.h"
#include "data/loader.h"
#include "models/optim/ema.h"

namespace polygrad {

class Rehearsal {
 public:
  // Data, model and optimizer as a new run would have them; `workers` threads load the data. Throws what a run would
  // throw at its start.
  Rehearsal(const Config& config, int workers);
  // With data and model of the caller's.
  Rehearsal(const Config& config, Experiment experiment, int workers);
  Rehearsal(const Rehearsal&) = delete;
  Rehearsal& operator=(const Rehearsal&) = delete;

  // The next step of the run: the loader must stand at the batch after the last step's.
  StepResult step();

  const Experiment& experiment() const { return experiment_; }
  Device device() const { return experiment_.model->device(); }
  const Optimizer& optimizer() const { return *optimizer_; }
  Loader& loader() { return loader_; }
  std::int64_t steps_per_epoch() const { return steps_per_epoch_; }
  std::int64_t total_steps() const { return total_steps_; }

 private:
  Tf32Guard tf32_;
  Experiment experiment_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Ema> ema_;
  Loader loader_;
  std::int64_t steps_per_epoch_, total_steps_;
  Schedule schedule_;
  SingleProcess single_;
  SkippedSteps skipped_;
  LossScale loss_scale_;
  TrainStep train_step_;
  std::int64_t done_ = 0;
  DataPosition position_;
};

}  // namespace polygrad
