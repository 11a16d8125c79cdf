#include "apps/training/health.h"

#include <cmath>

#include "engine/format.h"

namespace polygrad {

namespace {

// Labels of val that do not belong to its pictures look just so: the loss falls, and val stays at chance.
bool doubts_labels(const HealthOptions& options, const EvalResult& result, double training_loss) {
  constexpr std::int64_t kFewClasses = 10;
  if (options.overfit || options.classes < kFewClasses || !(training_loss > 0)) return false;
  const bool learned = training_loss < 0.6 * std::log(static_cast<double>(options.classes));
  return learned && result.top1 < 150.0 / static_cast<double>(options.classes);
}

// A run that has learned nothing yet may be at a plateau that ends, or at a fault that does not.
bool is_at_chance(const HealthOptions& options, std::int64_t step, const EvalResult& result) {
  constexpr std::int64_t kPatience = 1000;
  constexpr double kDeviations = 2;
  const double share = options.chance / 100;
  const double noise = 100 * std::sqrt(share * (1 - share) / static_cast<double>(result.count));
  return step >= kPatience && result.top1 <= options.chance + kDeviations * noise;
}

}  // namespace

std::vector<std::string> Health::after_evaluation(std::int64_t step, const EvalResult& result, double training_loss) {
  std::vector<std::string> warnings;
  if (!labels_doubted_ && doubts_labels(options_, result, training_loss)) {
    labels_doubted_ = true;
    warnings.push_back(
        format("warning    top-1 on val is {:.2f} % (chance is {:.2f} %) while the training loss has fallen to {:.2f}: "
               "the labels of val may not be those of train",
               result.top1, 100.0 / static_cast<double>(options_.classes), training_loss));
  }
  if (!warned_at_chance_ && is_at_chance(options_, step, result)) {
    warned_at_chance_ = true;
    warnings.push_back(format(
        "warning    after {} steps top-1 is {:.2f} %, the chance level {:.2f} %: a plateau (Pathfinder's lasts for "
        "thousands of steps), a learning rate that does not fit, or data whose labels do not match; --overfit 32 "
        "tells a fault of the pipeline from a hard task",
        step, result.top1, options_.chance));
  }
  return warnings;
}

}  // namespace polygrad
