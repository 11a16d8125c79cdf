// Experiment: data, model, optimizer and schedule as a configuration describes them.
//
// Where this stands: between config.h and trainer.h. An application that has its own data or model fills the parts
// itself and hands them to a Trainer. Read next: trainer.h.
#pragma once

#include <memory>

#include "apps/training/checkpoint.h"
#include "apps/training/config.h"
#include "data/augment.h"
#include "data/catalog.h"
#include "data/loader.h"
#include "data/mix.h"
#include "data/sampler.h"
#include "models/optim/optimizer.h"
#include "models/optim/schedule.h"
#include "models/zoo.h"

namespace polygrad {

// What is trained, on what. All parts but test and average are required.
struct Experiment {
  std::shared_ptr<const Dataset> train, val, test;
  Preprocessing preprocessing;  // of evaluation
  AugmentOptions augment;       // of training, per image
  MixOptions mix;               // of training, per batch
  std::string data_fingerprint;
  std::vector<std::string> data_notes;     // what was odd about the data's files, for people
  std::string data_report;                 // lines for people, of each part; may be empty
  std::int64_t repeats = 1;                // views of each sample in a row
  BadSample bad_sample = BadSample::stop;  // in training: stop or replace; an evaluation drops instead of replacing
  std::unique_ptr<Model> model;
  std::unique_ptr<Model> average;  // where train.ema_decay > 0: holds the averaged weights
};

// Refuses keys whose names are settled but whose work is not in this version: throws ConfigError for a value other than
// the default, which would do nothing.
void refuse_unavailable(const Config& config);
DataOptions data_options(const Config& config);
// How evaluation sees the data: the data's own size, or model.image_size where pictures can be resized to it.
Preprocessing make_preprocessing(const Config& config, const DataParts& data);
// The loader of training samples, with batch size, order, augmentation and seed as configured; rank 0 of 1, no workers,
// epochs without end.
LoaderOptions training_loader(const Config& config, const Experiment& experiment);
// What an evaluation does with a picture that can't be used.
BadSample bad_sample_in_evaluation(const Config& config);
// Habits of the Long Range Arena's reference code that this configuration has taken up, a line each; nothing where it
// has none.
std::vector<std::string> reference_habits(const Config& config);
// `classes` and `input` (channels, height, width) come from the data, and fill keys that the configuration leaves open.
ModelConfig model_config(const Config& config, std::int64_t classes, const Preprocessing& input);
// Throws what open_data and create_model throw; ConfigError where data and model do not fit (image size, channels).
Experiment build_experiment(const Config& config);
// The same with data that are open: those of data_options(config).
Experiment build_experiment(const Config& config, const DataParts& data);
std::unique_ptr<Model> build_model(const Config& config, std::int64_t classes, const Preprocessing& input);

std::unique_ptr<Optimizer> build_optimizer(const Config& config, const Model& model);
// Optimizer steps of an epoch of `batches` micro-batches: a step never spans two epochs, so the last may be shorter.
std::int64_t optimizer_steps(std::int64_t batches, std::int64_t accumulate);
// How many optimizer steps a run takes, and how many its schedule spans: train.max_steps ends a run early without
// bending the learning rate's curve, unless train.epochs is null: then it is the length of both. schedule.steps gives
// the curve a length of its own.
struct RunLength {
  std::int64_t steps = 0, schedule_steps = 0;
};
RunLength run_length(const Config& config, std::int64_t steps_per_epoch);
Schedule build_schedule(const Config& config, std::int64_t steps_per_epoch);

// The configuration for `--overfit N`: constant learning rate, no augmentation, dropout or drop path, and the first N
// training samples, which are validated on too (limit_train = N and one batch of N).
Config overfit_config(Config config, std::int64_t samples);

}  // namespace polygrad
