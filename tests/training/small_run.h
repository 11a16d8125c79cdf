// A run small enough for a unit test: a data set made of numbers, a model of a few hundred parameters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/training/config.h"
#include "apps/training/experiment.h"
#include "data/dataset.h"
#include "engine/generator.h"

namespace polygrad::testing {

// Images (1, 8, 8) of `classes` kinds: noise with a bright row whose place tells the class.
class StripeDataset : public Dataset {
 public:
  StripeDataset(std::int64_t size, std::int64_t classes, std::uint64_t seed = 0) : size_(size), seed_(seed) {
    for (std::int64_t c = 0; c < classes; ++c) names_.push_back("row " + std::to_string(c));
  }
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index, Generator&) const override {
    Generator noise(derive_seed(seed_, 7, static_cast<std::uint64_t>(index)));
    std::vector<float> pixels(64);
    for (float& pixel : pixels) pixel = noise.uniform() * 0.5f;
    const std::int64_t row = label(index);
    for (std::int64_t x = 0; x < 8; ++x) pixels[static_cast<std::size_t>(row * 8 + x)] += 0.8f;
    if (index == poisoned) pixels[0] = std::numeric_limits<float>::quiet_NaN();
    return {Tensor::from_vector(pixels, {1, 8, 8}), row};
  }
  std::int64_t label(std::int64_t index) const override {
    return static_cast<std::int64_t>(derive_seed(seed_, static_cast<std::uint64_t>(index)) % names_.size());
  }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string describe(std::int64_t index) const override { return "stripe " + std::to_string(index); }
  std::string fingerprint() const override { return "stripes " + std::to_string(size_) + " " + std::to_string(seed_); }

  std::int64_t poisoned = -1;  // this image holds a NaN

 private:
  std::int64_t size_;
  std::uint64_t seed_;
  std::vector<std::string> names_;
};

// x^3 attention, 2 blocks of width 12, batches of 10; `extra` are assignments as of --set.
inline Config small_config(const std::vector<std::string>& extra = {}) {
  Config config;
  for (const char* assignment :
       {"model.name=vit_tiny", "model.image_size=8", "model.patch_size=4", "model.embed_dim=12", "model.num_heads=3",
        "model.depth=2", "attention.phi=x3", "train.batch_size=10", "train.epochs=3", "train.log_every_steps=1",
        "optimizer.lr=0.003"}) {
    config.set(assignment);
  }
  for (const std::string& assignment : extra) config.set(assignment);
  return config;
}

inline Experiment small_experiment(const Config& config, std::int64_t samples = 64, std::int64_t classes = 5) {
  Experiment experiment;
  experiment.train = std::make_shared<StripeDataset>(samples, classes, 1);
  experiment.val = std::make_shared<StripeDataset>(23, classes, 2);
  experiment.test = std::make_shared<StripeDataset>(17, classes, 3);
  experiment.preprocessing = {.channels = 1, .height = 8, .width = 8, .mean = {0.3}, .stddev = {0.25}};
  const AugmentSettings augment = augment_settings(config);
  experiment.augment = {.flip = augment.flip, .crop_padding = augment.crop_padding, .mean = {0.3}, .stddev = {0.25}};
  experiment.model = build_model(config, classes, experiment.preprocessing);
  experiment.mix = {.mixup = augment.mixup,
                    .cutmix = augment.cutmix,
                    .label_smoothing = config.number("train.label_smoothing"),
                    .classes = classes};
  experiment.data_fingerprint = experiment.train->fingerprint();
  if (config.number("train.ema_decay") > 0) experiment.average = build_model(config, classes, experiment.preprocessing);
  return experiment;
}

}  // namespace polygrad::testing
