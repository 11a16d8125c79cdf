#include "apps/training/train_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/autograd.h"
#include "engine/capture.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/format.h"
#include "engine/profile.h"
#include "ops/binary.h"
#include "ops/loss.h"
#include "ops/optim_step.h"
#include "ops/reduce.h"
#include "ops/view.h"

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

// How many rows are right by argmax, on their device.
Tensor count_correct(const Tensor& logits, const Tensor& labels) {
  const NoGradGuard no_grad;
  return sum(eq(argmax(logits, 1), labels).to(DType::f32));
}

// A moment that is infinite stays so, and its parameter never moves again.
constexpr double kLargestNorm = 1.8e19;

// What steps that one graph can do have in common. The share is among the numbers that kernels were given.
struct StepKind {
  Shape input, targets;
  bool mixed = false;
  double share = 0;
  bool operator==(const StepKind&) const = default;
};

}  // namespace

struct TrainStep::Captured {
  StepKind last;  // the batch before: one of its kind is captured
  StepKind kind;
  Tensor input, targets;                             // where a batch is copied to
  std::vector<std::pair<Tensor, Tensor>> gradients;  // of parameters: where the graph leaves them
  Capture graph;                                     // after what it reads and writes: it goes first
};

std::string capture_obstacle(const Model& model, std::int64_t accumulate) {
  if (model.device().type == DeviceType::cpu) return "only a GPU's steps are captured";
  if (model.input_shape().dim() == 2) return "a model of tokens looks at each batch on the CPU";
  if (accumulate > 1) return format("a step has {} micro-batches (train.accumulate)", accumulate);
  if (draws_random_numbers(model)) {
    return "dropout and drop path draw other numbers in each step (model.dropout, model.drop_path, attention.dropout)";
  }
  return "";
}

TrainStep::TrainStep(const Model& model, Optimizer& optimizer, Ema* ema, Loader& loader, Communicator& communicator,
                     TrainStepOptions options, SkippedSteps& skipped, LossScale* loss_scale)
    : model_(model),
      optimizer_(optimizer),
      ema_(ema),
      loader_(loader),
      communicator_(communicator),
      options_(options),
      skipped_(skipped),
      loss_scale_(options.precision == Precision::f16 ? loss_scale : nullptr),
      device_(model.device()),
      notes_(zeros({2 * options.accumulate + 1}, {.dtype = DType::f64, .device = device_})) {
  if (options.capture) {
    if (const std::string obstacle = capture_obstacle(model, options.accumulate); !obstacle.empty()) {
      throw ValueError("[train] steps can't be captured: " + obstacle);
    }
    captured_ = std::make_unique<Captured>();
  }
  if (options.precision == Precision::f16 && loss_scale == nullptr) {
    throw ValueError("[train] f16 without a loss scale; expected one that lives as long as the run");
  }
}

TrainStep::~TrainStep() = default;

// --- batches -------------------------------------------------------------------------------------------------------

TrainStep::Micro TrainStep::load(std::int64_t step, DataPosition begin, std::int64_t micro) {
  const DataPosition position{begin.epoch, begin.batch + micro};
  std::optional<Batch> batch = next_batch(loader_);
  if (!batch || batch->position != position) {
    throw InternalError(
        format("[train] step {}: the loader is not at epoch {}, batch {}", step, position.epoch, position.batch));
  }
  // Samples are numbered within the step over all ranks and micro-batches, so that a mask does not depend on the split.
  const SamplerOptions& sampler = loader_.sampler().options();
  Micro result{.step = step,
               .position = position,
               .samples = batch->size(),
               .indices = batch->indices,
               .mixed = options_.mix.enabled(),
               .input = {},
               .targets = {},
               .context = {.training = true,
                           .seed = derive_seed(options_.seed, kDropoutSeed),
                           .step = step,
                           .first_sample = batch->offset - begin.batch * sampler.batch_size * sampler.world}};
  if (result.samples == 0) return result;  // another rank's part of an incomplete batch
  const ProfilePhase phase("data");
  Tensor targets = batch->labels;
  if (result.mixed) {
    Generator generator = mix_generator(options_.seed, step, micro);
    const MixPlan plan = draw_mix(options_.mix, batch->images.size(2), batch->images.size(3), generator);
    mix_images(batch->images, plan);
    targets = mix_targets(batch->labels, plan, options_.mix.classes, options_.mix.label_smoothing);
    profile_mark("mix");
  }
  result.input = Prefetch(batch->input(), batch->input_place(device_));
  result.targets = Prefetch(targets, device_);
  profile_mark("send");
  return result;
}

TrainStep::Micro TrainStep::take(std::int64_t step, DataPosition begin, std::int64_t micro) {
  if (ahead_failure_) std::rethrow_exception(std::exchange(ahead_failure_, nullptr));
  if (!ahead_) return load(step, begin, micro);
  Micro result = std::move(*ahead_);
  ahead_.reset();
  if (result.step != step || result.position != DataPosition{begin.epoch, begin.batch + micro}) {
    throw InternalError(format("[train] step {}, micro-batch {}: another batch was made ahead", step, micro));
  }
  return result;
}

// On a GPU: while that works. On the CPU there would be nothing to gain.
void TrainStep::look_ahead(std::int64_t step, DataPosition begin, std::int64_t micro) {
  if (device_.type == DeviceType::cpu) return;
  try {
    ahead_ = load(step, begin, micro);
  } catch (...) {
    ahead_failure_ = std::current_exception();
  }
}

// --- the model -----------------------------------------------------------------------------------------------------

Tensor TrainStep::forward(const Tensor& input, const Micro& micro) const {
  return model_.forward(input, micro.context).to(DType::f32);  // the loss is f32's, whatever the products' dtype
}

Tensor TrainStep::loss_of(const Tensor& logits, const Tensor& targets, bool mixed) const {
  if (mixed) return cross_entropy_soft(logits, targets, {.reduction = Reduction::sum});
  return cross_entropy(logits, targets, {.label_smoothing = options_.mix.label_smoothing, .reduction = Reduction::sum});
}

void TrainStep::note(std::int64_t at, const Tensor& number) {
  slice(notes_, 0, at, at + 1).copy_(reshape(number.detach(), {1}));
}

void TrainStep::learn_now(const Tensor& input, const Tensor& targets, const Micro& micro, std::int64_t number,
                          double share) {
  const PrecisionGuard precision(options_.precision, device_);
  const Tensor logits = forward(input, micro);
  const Tensor loss = loss_of(logits, targets, micro.mixed);
  note(2 * number, loss);
  if (!micro.mixed) note(2 * number + 1, count_correct(logits.detach(), targets));
  mul(loss, share).backward();
}

void TrainStep::learn(const Micro& micro, std::int64_t number, double share) {
  if (captured_ && learn_by_graph(micro, share)) return;
  try {
    learn_now(micro.input.get(), micro.targets.get(), micro, number, share);
    return;
  } catch (const OutOfMemoryError&) {
    if (!captured_ || !captured_->input.defined()) throw;
  }
  // A graph holds a step's memory. It can be captured again; and a step that is captured is one micro-batch, so nothing
  // but that has gradients yet.
  *captured_ = Captured{};
  optimizer_.zero_grad();
  learn_now(micro.input.get(), micro.targets.get(), micro, number, share);
}

bool TrainStep::learn_by_graph(const Micro& micro, double share) {
  const Tensor input = micro.input.get(), targets = micro.targets.get();
  const StepKind kind{input.shape(), targets.shape(), micro.mixed, share};
  Captured& own = *captured_;
  const bool same = own.input.defined() && own.kind == kind;
  // A first step also makes what is made at a first use, which can't be captured.
  const bool again = std::exchange(own.last, kind) == kind;
  if (!same && !again) return false;
  if (!same) {
    own = Captured{.last = kind, .kind = kind, .input = {}, .targets = {}, .gradients = {}, .graph = {}};
    const Tensor input_place = empty_like(input), target_place = empty_like(targets);
    const auto give_up = [&](const Error& error) {
      if (options_.must_capture) throw;
      not_captured_ = error.what();
    };
    try {
      own.graph = Capture(device_, [&] { learn_now(input_place, target_place, micro, 0, share); });
    } catch (const OutOfMemoryError& error) {
      if (options_.must_capture) throw OutOfMemoryError(std::string(error.what()) + "; or train.capture=off");
      give_up(error);
    } catch (const CudaError& error) {
      give_up(error);
    } catch (const InternalError& error) {
      give_up(error);
    }
    if (!not_captured_.empty()) {
      captured_.reset();
      optimizer_.zero_grad();  // nothing has computed them
      return false;
    }
    for (const ParamGroup& group : optimizer_.groups()) {
      for (const auto& [path, parameter] : group.parameters) {
        if (const Tensor gradient = parameter.grad(); gradient.defined()) {
          own.gradients.emplace_back(parameter, gradient);
        }
      }
    }
    own.input = input_place;
    own.targets = target_place;
  }
  own.input.copy_(input);
  own.targets.copy_(targets);
  own.graph.run();
  for (auto& [parameter, gradient] : own.gradients) parameter.set_grad(gradient);
  return true;
}

// --- what is not finite --------------------------------------------------------------------------------------------

namespace {

constexpr const char* kRemedies =
    "lower the learning rate, clip gradients (train.clip_grad) or use a larger attention.scale";

// Polynomials whose values nothing divides are known to be unstable: worth saying first.
std::string general_remedy(const Model& model) {
  for (const Attention* layer : model.attention_layers()) {
    const AttentionConfig& config = layer->config();
    if (config.phi.power() > 0 && config.divisor == 1) {
      return format("attention {} is not divided, which is known to diverge: attention.scale=sqrt_n, or {}",
                    to_string(config.phi), kRemedies);
    }
  }
  return kRemedies;
}

// "stripe 40, stripe 7", of the samples of (batch, ...) that hold one; "" where none does.
std::string samples_not_finite(const Tensor& input, const std::vector<std::int64_t>& indices, const Dataset& dataset) {
  if (!is_floating(input.dtype()) || all_finite(input)) return "";
  std::string names;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (all_finite(select(input, 0, static_cast<std::int64_t>(i)))) continue;
    names += (names.empty() ? "" : ", ") + dataset.describe(indices[i]);
  }
  return names;
}

std::string largest_gradient(const Model& model) {
  std::string largest;
  double most = -1;
  for (const auto& [path, parameter] : model.named_parameters()) {
    const double norm = parameter.grad().defined() ? global_norm({parameter.grad()}) : -1;
    if (norm > most) {
      largest = path;
      most = norm;
    }
  }
  return largest;
}

}  // namespace

std::string divergence(std::int64_t step, const std::string& what, double lr, double grad_norm,
                       const std::string& where, const std::string& remedy) {
  return format("[train] diverged at step {}: {}, with lr {:.3g} and gradient norm {:.3g}; first seen: {}; {}", step,
                what, lr, grad_norm, where, remedy);
}

TrainStep::Trace TrainStep::trace(const std::vector<Micro>& micros, double share) {
  for (const auto& [path, tensor] : model_.state()) {
    if (!all_finite(tensor)) {
      return {format("the weights: {} holds a NaN or infinity since an earlier update", path),
              "go on from an earlier checkpoint with a lower learning rate, or clip gradients (train.clip_grad)"};
    }
  }
  std::string samples;
  for (const Micro& micro : micros) {
    const std::string names = samples_not_finite(micro.input.get(), micro.indices, loader_.dataset());
    if (!names.empty()) samples += (samples.empty() ? "" : ", ") + names;
  }
  Trace result{"nowhere, every single result is finite; the largest gradient is that of " + largest_gradient(model_),
               general_remedy(model_)};
  optimizer_.zero_grad();
  captured_.reset();  // its memory is needed
  try {               // the same again, looking at every result
    const AnomalyGuard anomaly;
    const PrecisionGuard precision(options_.precision, device_);
    for (const Micro& micro : micros) {
      const Tensor logits = forward(micro.input.get(), micro);
      mul(loss_of(logits, micro.targets.get(), micro.mixed), share).backward();
    }
  } catch (const NumericError& error) {
    result.where = error.what();
  } catch (const OutOfMemoryError& error) {
    result.where = std::string("not found: ") + error.what();
  }
  optimizer_.zero_grad();
  if (!samples.empty()) {
    result.where += format("; the data themselves hold it: {}", samples);
    result.remedy = "look at these samples (--check-data)";
  }
  return result;
}

void TrainStep::not_finite(const std::string& what, std::int64_t step, const ScheduleValue& schedule,
                           const std::vector<Micro>& micros, double share, StepResult& result) {
  // In f16 an infinite gradient may be the scale's doing, as long as that can still be halved.
  const bool overflow = loss_scale_ && std::isfinite(result.loss) && !std::isfinite(result.grad_norm);
  if (overflow) loss_scale_->step_skipped();
  const bool by_scale = overflow && !loss_scale_->exhausted();
  const bool in_row = !overflow && skipped_.in_a_row < options_.max_skipped;
  if (!by_scale && !in_row) {
    std::string text = what;
    if (overflow) {
      text = format("{} steps in a row were skipped, and the loss scale fell below 1: gradients overflow f16",
                    skipped_.in_a_row + 1);
    } else if (options_.max_skipped > 0) {
      text += format(", after {} steps in a row that were skipped (train.max_skipped)", skipped_.in_a_row);
    }
    const Trace found = trace(micros, share);
    const std::string remedy =
        options_.max_skipped > 0 ? found.remedy : found.remedy + "; train.on_divergence=skip leaves such steps out";
    throw NumericError(divergence(step + 1, text, schedule.lr, result.grad_norm, found.where, remedy));
  }
  ++skipped_.total;
  ++skipped_.in_a_row;
  result.skipped = true;
  if (!std::isfinite(result.loss)) result.correct = result.counted = 0;
  optimizer_.zero_grad();
}

// --- the step ------------------------------------------------------------------------------------------------------

StepResult TrainStep::run(std::int64_t step, DataPosition position, const ScheduleValue& schedule) {
  // For the whole step: micro-batches share rounded weights. A captured step is one, and if capturing fails, what it
  // rounded has never been computed: the plain step must round for itself.
  std::optional<PrecisionGuard> precision;
  if (!captured_) precision.emplace(options_.precision, device_);
  const Sampler& sampler = loader_.sampler();
  const std::int64_t end = std::min(position.batch + options_.accumulate, sampler.batches_per_epoch());
  const std::int64_t count = end - position.batch;
  std::int64_t own = 0;
  for (std::int64_t batch = position.batch; batch < end; ++batch) {
    const Sampler::Range range = sampler.range(batch);
    own += range.end - range.begin;
  }
  StepResult result;
  result.next = sampler.normalized({position.epoch, end});
  result.samples = static_cast<std::int64_t>(communicator_.sum(static_cast<double>(own)));
  const double mean = 1.0 / static_cast<double>(result.samples), scale = loss_scale_ ? loss_scale_->scale : 1;
  const double share = mean * scale;  // the scale is a power of two: nothing is rounded

  std::vector<Micro> micros;
  notes_.fill_(0);
  for (std::int64_t micro = 0; micro < count; ++micro) {
    Micro current = take(step, position, micro);
    if (current.samples > 0) {
      learn(current, micro, share);
      result.not_captured = std::exchange(not_captured_, "");
      if (!current.mixed) result.counted += current.samples;
      micros.push_back(std::move(current));
    }
    micro + 1 < count ? look_ahead(step, position, micro + 1) : look_ahead(step + 1, result.next, 0);
  }

  const ProfilePhase phase("optimizer");
  std::vector<Tensor> gradients = optimizer_.gradients();
  communicator_.sum(gradients);
  note(2 * options_.accumulate, sum_squares(gradients));
  profile_mark("gradient norm");
  const std::vector<double> noted = notes_.to_vector<double>();  // here the host waits
  result.grad_norm = std::abs(std::sqrt(noted.back()) / scale);  // a NaN has no sign
  double loss_sum = 0;
  for (std::int64_t micro = 0; micro < count; ++micro) {
    loss_sum += noted[static_cast<std::size_t>(2 * micro)];
    result.correct += static_cast<std::int64_t>(noted[static_cast<std::size_t>(2 * micro + 1)]);
  }
  result.loss = communicator_.sum(loss_sum) * mean;
  if (std::isnan(result.loss)) result.loss = std::abs(result.loss);
  const double clip = options_.clip_grad > 0 ? clip_factor(result.grad_norm, options_.clip_grad) : 1;
  std::string fault;
  if (!std::isfinite(result.loss)) {
    fault = format("the loss is {}", result.loss);
  } else if (!std::isfinite(result.grad_norm)) {
    fault = "the gradients are not finite";
  } else if (result.grad_norm * clip > kLargestNorm) {
    fault = "the gradients are too large, their squares overflow f32";
  }
  if (!fault.empty()) {
    not_finite(fault, step, schedule, micros, share, result);
    return result;
  }
  skipped_.in_a_row = 0;
  if (loss_scale_) loss_scale_->step_done();
  optimizer_.step(schedule, clip / scale);
  profile_mark("update");
  optimizer_.zero_grad();
  profile_mark("zero_grad");
  if (ema_) ema_->update(model_);
  profile_mark("average");
  return result;
}

}  // namespace polygrad
