#include "apps/training/rehearsal.h"

#include "apps/training/device.h"
#include "apps/training/precision.h"

namespace polygrad {

namespace {

const Config& checked(const Config& config) {
  parse_precision(config.text("train.precision"), choose_device(config));
  return config;
}

// With its models on the configuration's device, before anybody holds their parameters.
Experiment moved(Experiment experiment, const Config& config) {
  const Device device = choose_device(config);
  experiment.model->to(device);
  if (experiment.average) experiment.average->to(device);
  return experiment;
}

}  // namespace

Rehearsal::Rehearsal(const Config& config, int workers)
    : Rehearsal(config, build_experiment(checked(config)), workers) {}

Rehearsal::Rehearsal(const Config& config, Experiment experiment, int workers)
    : tf32_(config.flag("train.tf32")),
      experiment_(moved(std::move(experiment), config)),
      optimizer_(build_optimizer(config, *experiment_.model)),
      ema_(experiment_.average
               ? std::make_unique<Ema>(*experiment_.average, *experiment_.model, config.number("train.ema_decay"))
               : nullptr),
      loader_(experiment_.train,
              [&] {
                LoaderOptions options = training_loader(config, experiment_);
                options.workers = workers;
                return options;
              }()),
      steps_per_epoch_(optimizer_steps(loader_.batches_per_epoch(), config.integer("train.accumulate"))),
      total_steps_(run_length(config, steps_per_epoch_).steps),
      schedule_(build_schedule(config, steps_per_epoch_)),
      train_step_(*experiment_.model, *optimizer_, ema_.get(), loader_, single_,
                  {.seed = config.seed("seed"),
                   .accumulate = config.integer("train.accumulate"),
                   .clip_grad = config.number("train.clip_grad"),
                   .mix = experiment_.mix,
                   .precision = parse_precision(config.text("train.precision"), device())},
                  skipped_, &loss_scale_) {
  loader_.start();
}

StepResult Rehearsal::step() {
  StepResult result = train_step_.run(done_, position_, schedule_.at(done_));
  position_ = result.next;
  ++done_;
  return result;
}

}  // namespace polygrad
