// What vit_step trains on: generated images, or an IDX folder, in the order and with the preprocessing of vit_train.
//
// Where this stands: between vit_step.cpp and data/. A step of the benchmark must be a step of the trainer, so its
// batches come through the same loader: on the same folder, with the same settings and seed 0, both see the same
// numbers (tests/cli/bench_test.cpp compares their losses bit for bit).
#pragma once

#include <memory>
#include <string>

#include "data/loader.h"

namespace polygrad::bench {

struct StepData {
  std::shared_ptr<const Dataset> train;
  std::unique_ptr<Loader> loader;  // without end, shuffled by seed 0
  std::int64_t channels = 0, height = 0, width = 0;
};

// Ten batches of noise, u8 (3, image, image). Pixels of image i: the words of Generator(derive_seed(1, i)), each four
// bytes from the low one up; its label: the first integer of Generator(derive_seed(1, i, 1)). Normalised with mean 0.5
// and standard deviation 0.25.
StepData generated_data(std::int64_t image, std::int64_t classes, std::int64_t batch);
// The training part of an IDX folder, as vit_train opens it. Throws DataError, ConfigError.
StepData idx_data(const std::string& folder, std::int64_t batch);

}  // namespace polygrad::bench
