// Schedule: which learning rate, and which beta1, are in force at an optimizer step.
//
// Where this stands: below the trainer, above nothing: a pure function of the step, so a resumed run is on the curve by
// knowing its step alone.
//
// One convention for all: step k (from 0) is the value used by the (k+1)-th update, and every length is counted in
// steps. warmup_steps W: the learning rate rises in a straight line from warmup_lr at step 0 to the curve's value,
// which it first has at step W. total_steps T: the curve ends there (min_lr); updates 0 ... T-1 are made.
// Numbers: base 1e-3, min 1e-5, start 1e-6, W 5, T 20: step 0 1e-6, 1 2.008e-4, 5 1e-3, 6 9.89183e-4, 12 5.56742e-4,
// 19 2.08169e-5, 20 1e-5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace polygrad {

struct ScheduleConfig {
  std::string name = "cosine";  // cosine, one_cycle, step, constant
  double lr = 1e-3;             // the peak
  std::int64_t total_steps = 1;
  std::int64_t warmup_steps = 0;
  double warmup_lr = 1e-6;
  double min_lr = 0;  // of the cosine

  // "unit": "epoch": the value changes only where an epoch begins. epoch_lag 1 is what the DeiT code does: it tells its
  // scheduler the epoch after it has ended, so the first two epochs both run with the first value.
  bool per_epoch = false;
  std::int64_t steps_per_epoch = 1;
  std::int64_t epoch_lag = 0;

  // cosine: true: the half wave spans W ... T, so it starts at the peak. false: it spans 0 ... T and the warm-up hides
  // its beginning (timm's default).
  bool warmup_prefix = true;

  // step: the rate is multiplied by gamma at each milestone (in steps), or else every step_size steps.
  std::vector<std::int64_t> milestones;
  std::int64_t step_size = 0;
  double gamma = 0.1;

  // one_cycle (torch's OneCycleLR; W is its pct_start * T): lr / div_factor -> lr at step W-1 -> lr / div_factor /
  // final_div_factor at step T-1; beta1 max -> base -> max. warmup_lr and min_lr are not read.
  std::string anneal = "linear";  // linear, cosine
  bool cycle_momentum = true;     // false: beta1 is left alone
  double base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25, final_div_factor = 1e4;
};

struct ScheduleValue {
  double lr = 0;
  std::optional<double> beta1;  // absent: the optimizer's own
};

class Schedule {
 public:
  // Throws ConfigError, naming the key, for an unknown name or values without sense.
  explicit Schedule(ScheduleConfig config);
  // Any step >= 0; after the end, the last value. Throws ValueError for a negative step.
  ScheduleValue at(std::int64_t step) const;
  const ScheduleConfig& config() const { return config_; }
  // A table of about `rows` evenly spaced steps (first, peak at the warm-up's end and last always among them), for
  // people.
  std::string table(std::int64_t rows = 20) const;

 private:
  ScheduleConfig config_;
};

}  // namespace polygrad
