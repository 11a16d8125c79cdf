// Health: what the numbers of a run say about it, as warnings for people. Each is given once a run.
//
// Where this stands: beside the trainer, which asks after each evaluation. Nothing here changes a run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/evaluate.h"

namespace polygrad {

struct HealthOptions {
  double chance = 0;         // percent: what always taking the most frequent class gets
  std::int64_t classes = 0;  // of the model
  bool overfit = false;      // validation is on the training samples, on purpose
};

class Health {
 public:
  Health() = default;
  explicit Health(HealthOptions options) : options_(options) {}

  // `result` is of the validation samples after `step` steps; `training_loss` the mean of the last row, 0 before it.
  std::vector<std::string> after_evaluation(std::int64_t step, const EvalResult& result, double training_loss);

 private:
  HealthOptions options_;
  bool labels_doubted_ = false, warned_at_chance_ = false;
};

}  // namespace polygrad
