#include "apps/training/train_step.h"

#include <algorithm>
#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/profile.h"
#include "ops/binary.h"
#include "ops/loss.h"
#include "ops/optim_step.h"

namespace polygrad {

namespace {

// Keeps the masks of dropout apart from what else is drawn from the run's seed.
constexpr std::uint64_t kDropoutSeed = 1;

std::optional<Batch> next_batch(Loader& loader) {
  const ProfilePhase phase("data");
  std::optional<Batch> batch = loader.next();
  profile_mark("next batch");
  return batch;
}

std::int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  const Tensor rows = logits.detach().contiguous();
  const std::int64_t classes = rows.size(1);
  const float* row = rows.data<float>();
  const std::int64_t* label = labels.data<std::int64_t>();
  std::int64_t correct = 0;
  for (std::int64_t i = 0; i < rows.size(0); ++i, row += classes)
    correct += std::max_element(row, row + classes) - row == label[i];
  return correct;
}

}  // namespace

TrainStep::TrainStep(const Model& model, Optimizer& optimizer, Ema* ema, Loader& loader, Communicator& communicator,
                     TrainStepOptions options)
    : model_(model),
      optimizer_(optimizer),
      ema_(ema),
      loader_(loader),
      communicator_(communicator),
      options_(options) {}

TrainStep::Micro TrainStep::prepare(Batch batch, std::int64_t step, std::int64_t micro,
                                    std::int64_t first_sample) const {
  Micro result{.images = std::move(batch.images),
               .labels = std::move(batch.labels),
               .targets = {},
               .context = {.training = true,
                           .seed = derive_seed(options_.seed, kDropoutSeed),
                           .step = step,
                           .first_sample = first_sample}};
  if (options_.mix.enabled()) {
    const ProfilePhase phase("data");
    Generator generator = mix_generator(options_.seed, step, micro);
    const MixPlan plan = draw_mix(options_.mix, result.images.size(2), result.images.size(3), generator);
    mix_images(result.images, plan);
    result.targets = mix_targets(result.labels, plan, options_.mix.classes, options_.mix.label_smoothing);
    profile_mark("mix");
  }
  return result;
}

Tensor TrainStep::forward(const Micro& micro) const {
  return model_.forward(micro.images, micro.context).to(DType::f32);  // the loss is f32's, whatever the products' dtype
}

Tensor TrainStep::loss_of(const Micro& micro, const Tensor& logits) const {
  if (micro.targets.defined()) return cross_entropy_soft(logits, micro.targets, {.reduction = Reduction::sum});
  return cross_entropy(logits, micro.labels,
                       {.label_smoothing = options_.mix.label_smoothing, .reduction = Reduction::sum});
}

void TrainStep::diverged(const std::string& what, std::int64_t step, const ScheduleValue& schedule,
                         const std::vector<Micro>& micros, std::int64_t samples) {
  std::string where = "every single result is finite: the sum of the gradients is not";
  optimizer_.zero_grad();
  try {  // the same again, looking at every result
    const AnomalyGuard anomaly;
    for (const Micro& micro : micros) {
      mul(loss_of(micro, forward(micro)), 1.0 / static_cast<double>(samples)).backward();
    }
  } catch (const NumericError& error) {
    where = error.what();
  }
  optimizer_.zero_grad();
  throw NumericError(
      format("[train] diverged at step {}: {} with lr {:.3g}; first seen: {}; lower the learning rate, clip gradients "
             "(train.clip_grad) or use a larger attention.scale",
             step + 1, what, schedule.lr, where));
}

StepResult TrainStep::run(std::int64_t step, DataPosition position, const ScheduleValue& schedule) {
  const PrecisionGuard precision(options_.precision);  // for the whole step: micro-batches share rounded weights
  const Sampler& sampler = loader_.sampler();
  const std::int64_t end = std::min(position.batch + options_.accumulate, sampler.batches_per_epoch());
  std::int64_t own = 0;
  for (std::int64_t batch = position.batch; batch < end; ++batch) {
    const Sampler::Range range = sampler.range(batch);
    own += range.end - range.begin;
  }
  StepResult result;
  result.samples = static_cast<std::int64_t>(communicator_.sum(static_cast<double>(own)));
  const double share = 1.0 / static_cast<double>(result.samples);

  std::vector<Micro> micros;
  double loss_sum = 0;
  // Samples are numbered within the step over all ranks and micro-batches, so that a mask does not depend on the split.
  const std::int64_t step_begin = position.batch * sampler.options().batch_size * sampler.options().world;
  for (std::int64_t micro = 0; position.batch + micro < end; ++micro) {
    std::optional<Batch> batch = next_batch(loader_);
    if (!batch || batch->position != DataPosition{position.epoch, position.batch + micro}) {
      throw InternalError(format("[train] step {}: the loader is not at epoch {}, batch {}", step, position.epoch,
                                 position.batch + micro));
    }
    if (batch->size() == 0) continue;  // another rank's part of an incomplete batch
    const std::int64_t first_sample = batch->offset - step_begin;
    micros.push_back(prepare(std::move(*batch), step, micro, first_sample));
    const Micro& current = micros.back();
    const Tensor logits = forward(current);
    const Tensor loss = loss_of(current, logits);
    const double value = static_cast<double>(loss.item<float>());
    if (!std::isfinite(value)) diverged(format("the loss is {}", value), step, schedule, micros, result.samples);
    loss_sum += value;
    if (!current.targets.defined()) {
      result.correct += count_correct(logits, current.labels);
      result.counted += current.images.size(0);
    }
    mul(loss, share).backward();
  }
  result.loss = communicator_.sum(loss_sum) * share;

  const ProfilePhase phase("optimizer");
  std::vector<Tensor> gradients = optimizer_.gradients();
  communicator_.sum(gradients);
  result.grad_norm = global_norm(gradients);
  if (!std::isfinite(result.grad_norm)) {
    diverged(format("the gradient's norm is {}", result.grad_norm), step, schedule, micros, result.samples);
  }
  profile_mark("gradient norm");
  optimizer_.step(schedule, options_.clip_grad > 0 ? clip_factor(result.grad_norm, options_.clip_grad) : 1);
  profile_mark("update");
  optimizer_.zero_grad();
  profile_mark("zero_grad");
  if (ema_) ema_->update(model_);
  profile_mark("average");
  result.next = sampler.normalized({position.epoch, end});
  return result;
}

}  // namespace polygrad
