#include "apps/training/health.h"

#include <algorithm>
#include <cmath>

#include "engine/format.h"

namespace polygrad {

namespace {

// The standard deviation of a share that was counted in `count` samples; all in percent.
double noise(double percent, std::int64_t count) {
  const double share = std::clamp(percent / 100, 0.0, 1.0);
  return 100 * std::sqrt(share * (1 - share) / static_cast<double>(std::max<std::int64_t>(count, 1)));
}

double uniform_loss(const HealthOptions& options) { return std::log(static_cast<double>(options.classes)); }

}  // namespace

std::vector<std::string> Health::after_first_step(double loss, std::int64_t samples) const {
  // Fresh scores make the losses of samples differ by about 0.3; three deviations of their mean are allowed for.
  const double expected = uniform_loss(options_);
  const double tolerance = 0.1 * expected + 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(samples, 1)));
  if (options_.classes < 2 || !std::isfinite(loss) || std::abs(loss - expected) <= tolerance) return {};
  const char* cause = loss > expected
                          ? "scores that are too large (attention.scale, pixels that are not normalised: data.mean, "
                            "data.stddev), or labels that are not 0 ... classes - 1"
                          : "a batch of few classes, or pictures that hold their label";
  return {format("warning    the first loss is {:.4f}, a fresh model of {} classes should have {:.4f}: {}", loss,
                 options_.classes, expected, cause)};
}

// Labels of val that do not belong to its pictures look just so: the loss falls, and val stays at chance.
std::optional<std::string> Health::doubted_labels(const EvalResult& result, const TrainingRow& training) const {
  constexpr std::int64_t kFewClasses = 10;
  if (options_.classes < kFewClasses || !(training.loss > 0)) return std::nullopt;
  const bool learned = training.loss < 0.6 * uniform_loss(options_);
  if (!learned || result.top1 >= 150.0 / static_cast<double>(options_.classes)) return std::nullopt;
  return format(
      "warning    top-1 on val is {:.2f} % (chance is {:.2f} %) while the training loss has fallen to {:.2f}: "
      "the labels of val may not be those of train",
      result.top1, 100.0 / static_cast<double>(options_.classes), training.loss);
}

// A run that has learned nothing yet may be at a plateau that ends, or at a fault that does not.
std::optional<std::string> Health::at_chance(std::int64_t step, const EvalResult& result,
                                             const TrainingRow& training) const {
  constexpr std::int64_t kPatience = 1000, kLeast = 100;  // steps
  constexpr double kDeviations = 2;
  std::int64_t patience = kPatience;
  if (options_.total_steps > 0) patience = std::clamp(options_.total_steps / 3, kLeast, kPatience);
  if (step < options_.warmup_steps + patience) return std::nullopt;
  if (result.top1 > options_.chance + kDeviations * noise(options_.chance, result.count)) return std::nullopt;
  // What was learned and does not carry over to val is another matter.
  if (training.top1 > options_.chance + 10 + kDeviations * noise(options_.chance, training.counted)) {
    return std::nullopt;
  }
  return format(
      "warning    after {} steps top-1 is {:.2f} %, the chance level {:.2f} % (loss {:.4f}, knowing nothing {:.4f}): a "
      "plateau (Pathfinder's lasts for thousands of steps), a learning rate that does not fit, or data whose labels do "
      "not match; --overfit 32 tells a fault of the pipeline from a hard task",
      step, result.top1, options_.chance, result.loss, uniform_loss(options_));
}

std::optional<std::string> Health::not_finite(const EvalResult& result, const TrainingRow& training) const {
  if (std::isfinite(result.loss) || !std::isfinite(training.loss)) return std::nullopt;
  const std::string beside = training.loss > 0 ? format(" while training goes on with {:.4f}", training.loss) : "";
  return format(
      "warning    the loss on val is {}{}: a picture of val that holds no number, or scores that overflow; this "
      "evaluation can't be the best",
      result.loss, beside);
}

std::optional<std::string> Health::overfitting(const EvalResult& result, const TrainingRow& training) const {
  constexpr double kPoints = 25;
  const double spread = 3 * std::hypot(noise(result.top1, result.count), noise(training.top1, training.counted));
  if (training.top1 - result.top1 > kPoints + spread) {
    return format(
        "warning    top-1 is {:.2f} % on the training samples and {:.2f} % on val: overfitting (more augmentation, "
        "model.drop_path, optimizer.weight_decay, more samples, fewer epochs), or val is of another kind than train",
        training.top1, result.top1);
  }
  constexpr int kEvaluations = 3;
  constexpr double kRisen = 1.25, kFallen = 0.8;
  if (evaluations_since_ >= kEvaluations && result.loss > kRisen * lowest_loss_ &&
      training.loss < kFallen * training_loss_then_) {
    return format(
        "warning    the loss on val rises: {:.4f}, {} evaluations after its lowest, {:.4f}, while training's fell from "
        "{:.4f} to {:.4f}: overfitting; best keeps the weights with the highest top-1",
        result.loss, evaluations_since_, lowest_loss_, training_loss_then_, training.loss);
  }
  return std::nullopt;
}

std::vector<std::string> Health::after_evaluation(std::int64_t step, const EvalResult& result,
                                                  const TrainingRow& training) {
  ++evaluations_since_;
  if (result.loss < lowest_loss_) {
    lowest_loss_ = result.loss;
    training_loss_then_ = training.loss;
    evaluations_since_ = 0;
  }
  std::vector<std::string> warnings;
  const auto once = [&](bool& given, std::optional<std::string> warning) {
    if (given || !warning) return;
    given = true;
    warnings.push_back(std::move(*warning));
  };
  once(was_at_chance_, at_chance(step, result, training));
  once(was_not_finite_, not_finite(result, training));
  if (options_.overfit) return warnings;
  once(doubted_, doubted_labels(result, training));
  // Doubted labels are the graver form of the same.
  if (!doubted_) once(was_overfitting_, overfitting(result, training));
  return warnings;
}

}  // namespace polygrad
