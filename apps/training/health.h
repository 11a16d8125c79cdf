// Health: what the numbers of a run say about it, as warnings for people. Each is given once from a start.
//
// Where this stands: beside the trainer, which asks after its first step and after each evaluation. Nothing here
// changes a run. The limits are wide: a warning in a run that goes well would teach people to look away.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/evaluate.h"

namespace polygrad {

struct HealthOptions {
  double chance = 0;              // percent: what always taking the most frequent class gets
  std::int64_t classes = 0;       // of the model
  bool overfit = false;           // validation is on the training samples, on purpose
  std::int64_t total_steps = 0;   // of the run; 0: not known
  std::int64_t warmup_steps = 0;  // at whose start nothing can be learned
};

// What the last train row says of the training samples.
struct TrainingRow {
  double loss = 0;                                         // 0: there was none yet
  double top1 = std::numeric_limits<double>::quiet_NaN();  // percent; NaN: not known, as with mixed targets
  std::int64_t counted = 0;                                // samples behind top1
};

class Health {
 public:
  Health() = default;
  explicit Health(HealthOptions options) : options_(options) {}

  // `loss` is the mean over `samples` of the first step of a model with fresh parameters: nothing was learned before
  // it.
  std::vector<std::string> after_first_step(double loss, std::int64_t samples) const;
  // `result` is of the validation samples after `step` steps.
  std::vector<std::string> after_evaluation(std::int64_t step, const EvalResult& result, const TrainingRow& training);

 private:
  std::optional<std::string> doubted_labels(const EvalResult& result, const TrainingRow& training) const;
  std::optional<std::string> at_chance(std::int64_t step, const EvalResult& result, const TrainingRow& training) const;
  std::optional<std::string> not_finite(const EvalResult& result, const TrainingRow& training) const;
  std::optional<std::string> overfitting(const EvalResult& result, const TrainingRow& training) const;

  HealthOptions options_;
  bool doubted_ = false, was_at_chance_ = false, was_not_finite_ = false, was_overfitting_ = false;
  // Of the evaluation with the lowest loss, and how many there were since.
  double lowest_loss_ = std::numeric_limits<double>::infinity(), training_loss_then_ = 0;
  int evaluations_since_ = 0;
};

}  // namespace polygrad
