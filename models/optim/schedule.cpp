#include "models/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

namespace {

// 1 at progress 0, 0 at progress 1, half a cosine wave between.
double half_wave(double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }

double interpolate(const std::string& anneal, double from, double to, double progress) {
  return anneal == "cosine" ? to + (from - to) * half_wave(progress) : from + progress * (to - from);
}

double cosine(const ScheduleConfig& c, double t) {
  const double total = static_cast<double>(c.total_steps);
  if (t >= total) return c.min_lr;
  const double start = c.warmup_prefix ? static_cast<double>(c.warmup_steps) : 0;
  return c.min_lr + (c.lr - c.min_lr) * half_wave((t - start) / (total - start));
}

double step_decay(const ScheduleConfig& c, double t) {
  double drops = 0;
  if (c.milestones.empty()) {
    if (c.step_size > 0) drops = std::floor(t / static_cast<double>(c.step_size));
  } else {
    for (const std::int64_t milestone : c.milestones) drops += t >= static_cast<double>(milestone) ? 1 : 0;
  }
  return c.lr * std::pow(c.gamma, drops);
}

ScheduleValue one_cycle(const ScheduleConfig& c, double t) {
  const double initial = c.lr / c.div_factor, final = initial / c.final_div_factor;
  const double peak = static_cast<double>(std::max<std::int64_t>(c.warmup_steps, 1) - 1);
  const double last = static_cast<double>(c.total_steps - 1);
  const bool rising = t < peak;
  double progress = 1;  // where the cycle has no length
  if (rising) {
    progress = t / peak;
  } else if (last > peak) {
    progress = std::min((t - peak) / (last - peak), 1.0);
  } else if (t <= peak) {
    progress = 0;
  }
  ScheduleValue value;
  value.lr = rising ? interpolate(c.anneal, initial, c.lr, progress) : interpolate(c.anneal, c.lr, final, progress);
  if (c.cycle_momentum) {
    value.beta1 = rising ? interpolate(c.anneal, c.max_momentum, c.base_momentum, progress)
                         : interpolate(c.anneal, c.base_momentum, c.max_momentum, progress);
  }
  return value;
}

void check(bool right, const char* key, const std::string& text) {
  if (!right) throw ConfigError(format("[schedule.{}] {}", key, text));
}

}  // namespace

Schedule::Schedule(ScheduleConfig config) : config_(std::move(config)) {
  const ScheduleConfig& c = config_;
  check(c.name == "cosine" || c.name == "one_cycle" || c.name == "step" || c.name == "constant", "name",
        format("unknown schedule '{}'; expected cosine, one_cycle, step or constant", c.name));
  check(std::isfinite(c.lr) && c.lr >= 0, "lr", format("expected a finite number >= 0, got {}", c.lr));
  check(std::isfinite(c.min_lr) && c.min_lr >= 0, "min_lr", format("expected a finite number >= 0, got {}", c.min_lr));
  check(std::isfinite(c.warmup_lr) && c.warmup_lr >= 0, "warmup_lr",
        format("expected a finite number >= 0, got {}", c.warmup_lr));
  check(c.total_steps >= 1, "total_steps", format("expected at least 1, got {}", c.total_steps));
  check(c.warmup_steps >= 0, "warmup_steps", format("expected at least 0, got {}", c.warmup_steps));
  check(c.warmup_steps <= c.total_steps, "warmup_steps",
        format("{} steps of warm-up in a schedule of {}; a shorter warm-up (schedule.warmup_epochs or "
               "schedule.warmup_steps), or more steps (train.epochs)",
               c.warmup_steps, c.total_steps));
  check(c.steps_per_epoch >= 1, "steps_per_epoch", format("expected at least 1, got {}", c.steps_per_epoch));
  check(c.epoch_lag >= 0, "epoch_lag", format("expected at least 0, got {}", c.epoch_lag));
  check(c.anneal == "linear" || c.anneal == "cosine", "anneal",
        format("unknown anneal '{}'; expected linear or cosine", c.anneal));
  check(c.div_factor > 0 && c.final_div_factor > 0, "div_factor", "expected positive divisors");
  check(c.step_size >= 0, "step_size", format("expected at least 0, got {}", c.step_size));
  check(c.gamma > 0, "gamma", format("expected a positive number, got {}", c.gamma));
  check(std::is_sorted(c.milestones.begin(), c.milestones.end()), "milestones", "expected increasing steps");
}

ScheduleValue Schedule::at(std::int64_t step) const {
  const ScheduleConfig& c = config_;
  if (step < 0) throw ValueError(format("[schedule] expected a step >= 0, got {}", step));
  if (c.per_epoch) {
    const std::int64_t epoch = std::max<std::int64_t>(step / c.steps_per_epoch - c.epoch_lag, 0);
    step = epoch * c.steps_per_epoch;
  }
  const double t = static_cast<double>(step), warmup = static_cast<double>(c.warmup_steps);
  if (c.name == "one_cycle") return one_cycle(c, t);
  // The warm-up leads to the curve's own value at its end, which is the peak but for curves that have dropped by then.
  const bool rising = step < c.warmup_steps;
  double lr = c.lr;
  if (c.name == "cosine" && !rising) lr = cosine(c, t);
  if (c.name == "step") lr = step_decay(c, rising ? warmup : t);
  if (rising) lr = c.warmup_lr + (lr - c.warmup_lr) * (t / warmup);
  return {lr, std::nullopt};
}

std::string Schedule::table(std::int64_t rows) const {
  const std::int64_t last = config_.total_steps - 1;
  const std::int64_t peak = config_.warmup_steps - (config_.name == "one_cycle" ? 1 : 0);
  std::set<std::int64_t> steps{0, std::clamp<std::int64_t>(peak, 0, last), last};
  rows = std::clamp<std::int64_t>(rows, 1, config_.total_steps);
  for (std::int64_t i = 0; i < rows; ++i) steps.insert(config_.total_steps * i / rows);  // round numbers where T is one
  std::string text = format("{:>10}  {:>12}  {:>6}\n", "step", "lr", "beta1");
  for (const std::int64_t step : steps) {
    const ScheduleValue value = at(step);
    text += format("{:>10}  {:>12.6g}  {:>6}\n", step, value.lr,
                   value.beta1 ? format("{:.4f}", *value.beta1) : std::string("-"));
  }
  return text;
}

}  // namespace polygrad
