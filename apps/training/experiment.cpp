#include "apps/training/experiment.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <tuple>

#include "apps/training/config_schema.h"
#include "apps/training/maps.h"
#include "data/lra.h"
#include "engine/error.h"
#include "engine/format.h"
#include "models/optim/adamw.h"
#include "models/optim/sgd.h"

namespace polygrad {

namespace {

// The configuration's model, not its data, says so: a model's parameters are looked at without any.
bool takes_tokens(const Config& config) { return config.text("model.name").rfind("lra_", 0) == 0; }

std::int64_t steps_of_epochs(double epochs, std::int64_t steps_per_epoch) {
  return static_cast<std::int64_t>(std::llround(epochs * static_cast<double>(steps_per_epoch)));
}

}  // namespace

void refuse_unavailable(const Config& config) {
  const Config defaults;
  const auto refuse = [&](const char* key, const std::string& why) {
    if (!(config.value(key) == defaults.value(key))) {
      throw ConfigError(format("[config] {}: {} is not available {}; expected {}", key, config.value(key).dump(), why,
                               defaults.value(key).dump()));
    }
  };
  for (const char* key : {"model.swin_pad", "attention.bias_position", "attention.class_attention_phi"}) {
    refuse(key, "in this version");
  }
  const std::string why = "for the model " + config.text("model.name");
  if (takes_tokens(config)) {
    for (const char* key : {"model.image_size", "model.patch_size", "model.in_channels", "model.class_token",
                            "model.pool", "data.crop_ratio", "data.mean", "data.stddev"}) {
      refuse(key, why);
    }
    for (const ConfigKey& key : config_keys()) {
      // What is switched off may be said.
      const bool off = config.value(key.name) == JsonValue::boolean(false);
      if (std::string_view(key.name).starts_with("augment.") && !off) refuse(key.name, why);
    }
    const LraTask* task = find_lra_task(config.text("data.name"));
    const auto only_for = [&](const char* key, std::initializer_list<std::string_view> tasks) {
      const bool known = task == nullptr || std::find(tasks.begin(), tasks.end(), task->name) != tasks.end();
      if (!known) refuse(key, "for the data " + task->data_name());
    };
    only_for("data.text_margin", {"listops", "text", "retrieval"});
    only_for("data.mask_zero_pixels", {"image", "pathfinder"});
    only_for("data.dev", {"text"});
    only_for("data.level", {"pathfinder"});
  } else {
    for (const char* key : {"model.pool_over_padding", "data.text_length", "data.text_margin", "data.mask_zero_pixels",
                            "data.dev", "data.level", "data.bucket"}) {
      refuse(key, why);
    }
  }
}

std::vector<std::string> reference_habits(const Config& config) {
  if (!takes_tokens(config)) return {};
  std::vector<std::string> habits;
  const auto add = [&](bool has, std::string what) {
    if (has) habits.push_back(std::move(what));
  };
  const std::string& data = config.text("data.name");
  add(config.flag("data.mask_zero_pixels"), "token 0 is no token, black pixels included (data.mask_zero_pixels)");
  add(config.flag("model.pool_over_padding"),
      "the mean over a sequence divides by the padded length (model.pool_over_padding)");
  add(config.flag("data.text_margin"), "a text fills 1000 of each 1024 positions (data.text_margin)");
  add(data == "lra_text" && config.text("data.dev") == "test",
      "the best weights are chosen on the test set (data.dev=test)");
  add(config.flag("eval.drop_last"), "an evaluation leaves an incomplete last batch out (eval.drop_last)");
  add(config.text("schedule.name") == "one_cycle" && config.flag("schedule.cycle_momentum"),
      "beta1 moves with the one-cycle schedule (schedule.cycle_momentum)");
  add(config.number("attention.dropout") > 0,
      "dropout acts on the attention matrix, so that phi = x takes the tiled path too (attention.dropout)");
  return habits;
}

DataOptions data_options(const Config& config) {
  return {.name = config.text("data.name"),
          .root = config.text("data.root"),
          .val_fraction = config.number_or("data.val_fraction", -1),
          .limit_train = config.integer_or("data.limit_train", -1),
          .limit_val = config.integer_or("data.limit_val", -1),
          .split_seed = config.seed("data.split_seed"),
          .stratify = config.flag("data.stratify"),
          .exif = config.flag("data.exif"),
          .grey = config.integer_or("model.in_channels", 0) == 1,
          .class_map = config.text("data.class_map"),
          .coarse = config.text("data.cifar100_labels") == "coarse",
          .text_length = config.integer_or("data.text_length", -1),
          .text_margin = config.flag("data.text_margin"),
          .dev = config.text("data.dev"),
          .level = config.text("data.level")};
}

Preprocessing make_preprocessing(const Config& config, const DataParts& data) {
  Preprocessing result{.channels = data.channels,
                       .height = data.height,
                       .width = data.width,
                       .mean = data.mean,
                       .stddev = data.stddev,
                       .exif = config.flag("data.exif"),
                       .towers = data.towers,
                       .length = data.length,
                       .vocabulary = data.vocabulary};
  if (data.resizable) {
    if (!config.is_null("model.image_size")) {
      std::tie(result.height, result.width) = config.size("model.image_size");
    } else if (data.height == 0) {
      const auto size = *resolve_model_config(config.text("model.name"), {}).image_size;
      result.height = size[0];
      result.width = size[1];
    }
    const double ratio = config.number_or("data.crop_ratio", data.crop_ratio);
    result.resize = static_cast<std::int64_t>(static_cast<double>(std::max(result.height, result.width)) / ratio);
  }
  const auto given = [&](const char* key, std::vector<double>& numbers) {
    if (config.is_null(key)) return;
    numbers = config.numbers(key);
    const auto count = static_cast<std::int64_t>(numbers.size());
    if (count != 1 && count != data.channels) {
      throw ConfigError(format("[config] {}: {} numbers for images with {} channels", key, count, data.channels));
    }
  };
  given("data.mean", result.mean);
  given("data.stddev", result.stddev);
  return result;
}

LoaderOptions training_loader(const Config& config, const Experiment& experiment) {
  return {.sampler = {.batch_size = config.integer("train.batch_size"),
                      .drop_last = config.flag("train.drop_last"),
                      .seed = config.seed("seed"),
                      .repeats = static_cast<int>(experiment.repeats),
                      .bucket = config.integer("data.bucket")},
          .bad_sample = experiment.bad_sample,
          .epochs = 0,
          .transform = ImageTransform(experiment.augment)};
}

BadSample bad_sample_in_evaluation(const Config& config) {
  return config.text("data.on_bad_image") == "skip" ? BadSample::drop : BadSample::stop;
}

ModelConfig model_config(const Config& config, std::int64_t classes, const Preprocessing& input) {
  ModelConfig result;
  const auto size = [&](const char* key) {
    return std::array<std::int64_t, 2>{config.size(key).first, config.size(key).second};
  };
  if (input.of_tokens()) {
    result.text_length = input.length;
  } else {
    result.image_size = std::array<std::int64_t, 2>{input.height, input.width};
  }
  if (!config.is_null("model.image_size")) result.image_size = size("model.image_size");
  if (!config.is_null("model.patch_size")) result.patch_size = size("model.patch_size");
  if (!input.of_tokens()) result.in_channels = config.integer_or("model.in_channels", input.channels);
  result.num_classes = config.integer_or("model.num_classes", classes);
  if (!config.is_null("model.embed_dim")) result.embed_dim = config.integer("model.embed_dim");
  if (!config.is_null("model.depth")) result.depth = config.integer("model.depth");
  if (!config.is_null("model.num_heads")) result.num_heads = config.integer("model.num_heads");
  if (!config.is_null("model.mlp_ratio")) result.mlp_ratio = config.number("model.mlp_ratio");
  if (!config.is_null("model.class_token")) result.class_token = config.flag("model.class_token");
  if (!config.is_null("model.pool")) result.pool = config.text("model.pool");
  result.dropout = config.number("model.dropout");
  result.drop_path = config.number("model.drop_path");
  result.phi = config.activations("attention.phi");
  result.scale = config.divisor("attention.scale");
  result.path = config.text("attention.path");
  result.attention_dropout = config.number("attention.dropout");
  result.mask_zero_pixels = config.flag("data.mask_zero_pixels");
  result.pool_over_padding = config.flag("model.pool_over_padding");
  result.seed = config.seed("seed");
  return result;
}

std::unique_ptr<Model> build_model(const Config& config, std::int64_t classes, const Preprocessing& input) {
  refuse_unavailable(config);
  std::unique_ptr<Model> model = create_model(config.text("model.name"), model_config(config, classes, input));
  map_requests(config, *model);  // a layer or head that it does not have is refused here
  if (model->num_classes() < classes) {
    throw ConfigError(
        format("[config] model.num_classes: {} for data with {} classes; leave it out, or give at least {}",
               model->num_classes(), classes, classes));
  }
  const Shape data = input.input_shape();
  if (model->input_shape() != data && (input.of_tokens() || model->input_shape().dim() != data.dim())) {
    throw ConfigError(
        format("[config] model.name: {} takes {} {}, the data {} have {} (images: channels, height, width; tokens: "
               "towers, length); name a model that fits",
               config.text("model.name"), model->input_shape().dim() == 2 ? "tokens" : "images",
               to_string(model->input_shape()), config.text("data.name"), to_string(data)));
  }
  if (model->input_shape() != data) {
    throw ConfigError(
        format("[config] model.image_size, model.in_channels: the model takes images {}, the data has {} "
               "(channels, height, width); leave both keys out",
               to_string(model->input_shape()), to_string(data)));
  }
  return model;
}

Experiment build_experiment(const Config& config) {
  // The data come last: a configuration that can't be built is told at once. Their shape is needed for the model,
  // though.
  refuse_unavailable(config);
  augment_settings(config);
  return build_experiment(config, open_data(data_options(config)));
}

Experiment build_experiment(const Config& config, const DataParts& data) {
  refuse_unavailable(config);
  const AugmentSettings augment = augment_settings(config);
  Experiment experiment;
  experiment.train = data.train;
  experiment.val = data.val;
  experiment.test = data.test;
  experiment.preprocessing = make_preprocessing(config, data);
  experiment.data_report = data.report;
  const Preprocessing& input = experiment.preprocessing;
  experiment.augment = {.flip = augment.flip,
                        .crop_padding = augment.crop_padding,
                        .mean = input.mean,
                        .stddev = input.stddev,
                        .resized_crop = augment.resized_crop,
                        .crop_scale = augment.crop_scale,
                        .randaugment = augment.randaugment,
                        .random_erasing = augment.random_erasing};
  if (data.resizable || augment.resized_crop) {
    experiment.augment.height = input.height;
    experiment.augment.width = input.width;
    // A random place of the padded whole image: as near to all of it as the model's shape allows.
    experiment.augment.resize = data.resizable ? std::max(input.height, input.width) : 0;
  }
  experiment.repeats = augment.repeated;
  if (config.text("data.on_bad_image") == "skip") experiment.bad_sample = BadSample::replace;
  experiment.data_notes = data.notes;
  if (data.hidden > 0 || !data.foreign.empty()) {
    experiment.data_notes.push_back(
        format("left out: {} hidden entries, {} files that are no pictures", data.hidden, data.foreign.size()));
  }
  const std::int64_t classes = static_cast<std::int64_t>(data.class_names.size());
  experiment.model = build_model(config, classes, experiment.preprocessing);
  experiment.mix = {.mixup = augment.mixup,
                    .cutmix = augment.cutmix,
                    .label_smoothing = config.number("train.label_smoothing"),
                    .classes = experiment.model->num_classes()};
  experiment.data_fingerprint = data.fingerprint();
  if (config.number("train.ema_decay") > 0) experiment.average = build_model(config, classes, experiment.preprocessing);
  if (config.text("eval.weights") == "ema" && !experiment.average) {
    throw ConfigError("[config] eval.weights: ema, but train.ema_decay is 0; expected raw, or a decay such as 0.999");
  }
  return experiment;
}

std::unique_ptr<Optimizer> build_optimizer(const Config& config, const Model& model) {
  std::vector<ParamGroup> groups = param_groups(model, config.number("optimizer.weight_decay"));
  if (config.text("optimizer.name") == "sgd") {
    return std::make_unique<Sgd>(std::move(groups), SgdOptions{.momentum = config.number("optimizer.momentum")});
  }
  const std::vector<double> betas = config.numbers("optimizer.betas");
  return std::make_unique<AdamW>(
      std::move(groups),
      AdamWOptions{.beta1 = betas.at(0), .beta2 = betas.at(1), .eps = config.number("optimizer.eps")});
}

std::int64_t optimizer_steps(std::int64_t batches, std::int64_t accumulate) {
  return (batches + accumulate - 1) / accumulate;
}

RunLength run_length(const Config& config, std::int64_t steps_per_epoch) {
  if (!config.is_null("schedule.steps")) {
    const std::int64_t curve = config.integer("schedule.steps");
    const double wanted = config.number_or("train.epochs", 0) * static_cast<double>(steps_per_epoch);
    constexpr double kMost = 1e15;
    const std::int64_t epochs = wanted > 0 ? std::max<std::int64_t>(1, std::llround(std::min(wanted, kMost))) : 0;
    const std::int64_t steps = config.integer_or("train.max_steps", epochs > 0 ? epochs : curve);
    return {epochs > 0 ? std::min(epochs, steps) : steps, curve};
  }
  constexpr double kDefaultEpochs = 10;
  if (config.is_null("train.epochs") && !config.is_null("train.max_steps")) {
    const std::int64_t steps = config.integer("train.max_steps");
    return {steps, steps};
  }
  const double epochs = config.number_or("train.epochs", kDefaultEpochs);
  constexpr double kMostSteps = 1e15;
  if (!(epochs > 0) || epochs * static_cast<double>(steps_per_epoch) > kMostSteps) {
    throw ConfigError(
        format("[config] train.epochs: {}; expected more than 0, and at most {:.0g} steps in all", epochs, kMostSteps));
  }
  const std::int64_t all = std::max<std::int64_t>(1, steps_of_epochs(epochs, steps_per_epoch));
  return {std::min(all, config.integer_or("train.max_steps", all)), all};
}

Schedule build_schedule(const Config& config, std::int64_t steps_per_epoch) {
  ScheduleConfig schedule;
  schedule.name = config.text("schedule.name");
  schedule.lr = config.number("optimizer.lr");
  schedule.total_steps = run_length(config, steps_per_epoch).schedule_steps;
  schedule.warmup_steps = config.integer_or(
      "schedule.warmup_steps", steps_of_epochs(config.number_or("schedule.warmup_epochs", 0), steps_per_epoch));
  schedule.warmup_lr = config.number("schedule.warmup_lr");
  schedule.min_lr = config.number("schedule.min_lr");
  schedule.per_epoch = config.text("schedule.unit") == "epoch";
  schedule.steps_per_epoch = steps_per_epoch;
  schedule.epoch_lag = config.integer("schedule.epoch_lag");
  schedule.warmup_prefix = config.flag("schedule.warmup_prefix");
  schedule.anneal = config.text("schedule.anneal");
  schedule.cycle_momentum = config.flag("schedule.cycle_momentum");
  schedule.base_momentum = config.number("schedule.base_momentum");
  schedule.max_momentum = config.number("schedule.max_momentum");
  schedule.div_factor = config.number("schedule.div_factor");
  schedule.final_div_factor = config.number("schedule.final_div_factor");
  for (const double epoch : config.numbers("schedule.milestones"))
    schedule.milestones.push_back(steps_of_epochs(epoch, steps_per_epoch));
  schedule.step_size = config.integer("schedule.step_size") * steps_per_epoch;
  schedule.gamma = config.number("schedule.gamma");
  return Schedule(std::move(schedule));
}

Config overfit_config(Config config, std::int64_t samples) {
  const auto set = [&](const char* key, JsonValue value) { config.set_value(key, value, "--overfit"); };
  constexpr std::int64_t kMaxSteps = 2000;
  const std::int64_t steps = !config.is_null("train.max_steps") ? config.integer("train.max_steps") : kMaxSteps;
  set("data.limit_train", JsonValue::integer(samples));
  set("augment.preset", JsonValue::text("none"));
  for (const char* key :
       {"augment.flip", "augment.crop_padding", "augment.mixup", "augment.cutmix", "augment.random_erasing",
        "augment.randaugment", "augment.repeated", "augment.resized_crop"}) {
    set(key, JsonValue());
  }
  for (const char* key :
       {"model.dropout", "model.drop_path", "attention.dropout", "train.label_smoothing", "train.ema_decay"}) {
    set(key, JsonValue::real(0));
  }
  set("eval.weights", JsonValue::text("raw"));
  set("schedule.name", JsonValue::text("constant"));
  set("schedule.steps", JsonValue());
  set("schedule.warmup_steps", JsonValue::integer(0));
  set("data.bucket", JsonValue::integer(0));
  set("train.batch_size", JsonValue::integer(samples));
  set("train.accumulate", JsonValue::integer(1));
  set("train.epochs", JsonValue());
  set("train.max_steps", JsonValue::integer(steps));
  set("train.eval_every_steps", JsonValue::integer(10));
  set("train.checkpoint_every_steps", JsonValue::integer(0));
  set("probe.norms", JsonValue::boolean(false));
  set("probe.maps", JsonValue::list());
  return config;
}

}  // namespace polygrad
