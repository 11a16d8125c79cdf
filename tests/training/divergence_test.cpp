// What a NaN or an infinity does to a run: it is named, or its step is left out; no checkpoint ever holds one.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/training/train_step.h"
#include "apps/training/trainer.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/safetensors.h"
#include "models/weights.h"
#include "ops/binary.h"
#include "ops/precision.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The steps of a run without its files.
struct Steps {
  explicit Steps(const std::vector<std::string>& keys, std::int64_t poisoned = -1)
      : config(small_config(keys)), experiment(small_experiment(config)) {
    auto train = std::make_shared<StripeDataset>(64, 5, 1);
    train->poisoned = poisoned;
    experiment.train = train;
    optimizer = build_optimizer(config, *experiment.model);
    if (experiment.average) ema = std::make_unique<Ema>(*experiment.average, *experiment.model, 0.9);
    loader = std::make_unique<Loader>(experiment.train, training_loader(config, experiment));
    loader->start();
    step.emplace(
        *experiment.model, *optimizer, ema.get(), *loader, single,
        TrainStepOptions{.seed = 0,
                         .accumulate = config.integer("train.accumulate"),
                         .clip_grad = config.number("train.clip_grad"),
                         .max_skipped = config.text("train.on_divergence") == "skip" ? 10 : 0,
                         .mix = experiment.mix,
                         .precision = config.text("train.precision") == "bf16" ? Precision::bf16 : Precision::f32},
        skipped);
  }
  StepResult run() {
    ScheduleValue schedule;
    schedule.lr = 0.003 + 0.001 * static_cast<double>(done);
    StepResult result = step->run(done, position, schedule);
    ++done;
    position = result.next;
    return result;
  }
  // As if the run's next batches were not there.
  void leave_out() {
    const std::int64_t batches = loader->batches_per_epoch();
    const std::int64_t end = std::min(position.batch + config.integer("train.accumulate"), batches);
    for (std::int64_t batch = position.batch; batch < end; ++batch) loader->next();
    position = loader->sampler().normalized({position.epoch, end});
    ++done;
  }
  std::string bytes() const {
    NamedTensors all = experiment.model->state();
    for (auto& tensor : optimizer->export_state()) all.push_back(tensor);
    if (ema) {
      for (auto& tensor : ema->export_state()) all.push_back(tensor);
    }
    return fingerprint(all);
  }
  void scale_weight(const std::string& path, float factor) {
    const NoGradGuard no_grad;
    Tensor weight = experiment.model->find(path);
    weight.copy_(mul(weight, factor));
  }
  // The message of the first step that throws; "" where none does.
  std::string failure(int steps) {
    try {
      for (int i = 0; i < steps; ++i) run();
    } catch (const NumericError& error) {
      return error.what();
    }
    return "";
  }

  Config config;
  Experiment experiment;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Ema> ema;
  std::unique_ptr<Loader> loader;
  SingleProcess single;
  SkippedSteps skipped;
  std::optional<TrainStep> step;
  std::int64_t done = 0;
  DataPosition position;
};

std::vector<std::vector<std::string>> variants() {
  std::vector<std::vector<std::string>> all = {{},
                                               {"train.accumulate=2"},
                                               {"train.ema_decay=0.9", "train.clip_grad=1"},
                                               {"model.dropout=0.1", "model.drop_path=0.1", "augment.mixup=0.8"},
                                               {"optimizer.name=sgd"}};
  if (precision_obstacle(Precision::bf16).empty()) all.push_back({"train.precision=bf16", "train.accumulate=2"});
  return all;
}

std::vector<std::string> with(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

// A run with a poisoned training sample, by Trainer.
TrainResult train(const Config& config, const std::string& folder, const std::string& resume = "",
                  std::int64_t stop_after = -1, std::int64_t poisoned = 40, std::vector<std::string>* said = nullptr) {
  Experiment experiment = small_experiment(config);
  auto samples = std::make_shared<StripeDataset>(64, 5, 1);
  samples->poisoned = poisoned;
  experiment.train = samples;
  TrainerOptions options{.out = folder, .resume = resume};
  if (said) options.report = [said](std::string_view line) { said->emplace_back(line); };
  Trainer trainer(config, std::move(experiment), options);
  std::stop_source stop;
  trainer.on_step = [&](const StepInfo& info) {
    if (info.step == stop_after) stop.request_stop();
  };
  return trainer.run(stop.get_token());
}

MetricsRow last_row(const std::string& folder) { return read_metrics(folder + "/metrics.jsonl").back(); }

void check_finite(const std::string& folder) {
  for (const char* file : {"/model.safetensors", "/state.safetensors"}) {
    for (const auto& [name, tensor] : load_safetensors(folder + "/checkpoints/latest" + file)) {
      CHECK_MESSAGE((!is_floating(tensor.dtype()) || all_finite(tensor)), name);
    }
  }
}

}  // namespace

TEST_CASE("a divergence names step, learning rate, gradient norm and where it was first seen") {
  for (const std::vector<std::string>& keys : variants()) {
    CAPTURE(keys.empty() ? std::string("plain") : keys[0]);
    {
      Steps data(keys, 40);
      const std::string text = data.failure(7);
      CAPTURE(text);
      CHECK(contains(text, "[train] diverged at step "));
      CHECK(contains(text, ": the loss is nan, with lr 0.0"));
      CHECK(contains(text, " and gradient norm nan; first seen: ["));
      CHECK(contains(text, "patch_embed"));
      CHECK(contains(text, "the data themselves hold it: stripe "));
      CHECK(contains(text, "--check-data"));
    }
    {
      Steps weights(keys);
      weights.scale_weight("blocks.1.mlp.fc1.weight", kNan);
      const std::string before = weights.bytes(), text = weights.failure(1);
      CAPTURE(text);
      CHECK(contains(text,
                     "diverged at step 1: the loss is nan, with lr 0.003 and gradient norm nan; first seen: the "
                     "weights: blocks.1.mlp.fc1.weight holds a NaN or infinity since an earlier update"));
      CHECK(weights.bytes() == before);
    }
    {
      Steps scores(keys);
      scores.scale_weight("blocks.1.mlp.fc1.weight", 1e30f);
      scores.scale_weight("blocks.1.mlp.fc2.weight", 1e30f);
      const std::string text = scores.failure(1);
      CAPTURE(text);
      CHECK(contains(text, "diverged at step 1: the loss is nan, with lr 0.003 and gradient norm nan; first seen: ["));
      CHECK(contains(text, "in module blocks.1.mlp"));
      CHECK(!contains(text, "the data themselves"));
      CHECK(contains(text, "train.on_divergence=skip leaves such steps out"));
    }
  }
}

TEST_CASE("gradients whose squares overflow are a divergence too: the moments would stay infinite") {
  Steps steps({});
  steps.scale_weight("head.weight", 1e24f);
  const std::string before = steps.bytes(), text = steps.failure(1);
  CAPTURE(text);
  CHECK(contains(text, "the gradients are too large, their squares overflow f32, with lr 0.003 and gradient norm "));
  CHECK(contains(text, "first seen: nowhere, every single result is finite; the largest gradient is that of "));
  CHECK(steps.bytes() == before);
  // Clipped, they do no harm.
  Steps clipped({"train.clip_grad=1"});
  clipped.scale_weight("head.weight", 1e24f);
  CHECK(clipped.failure(1).empty());
}

TEST_CASE("a polynomial that nothing divides is named as what it is") {
  Steps steps({"attention.scale=1"});
  steps.scale_weight("blocks.0.attn.qkv.weight", 1e20f);
  CHECK(contains(steps.failure(1), "attention x3 is not divided, which is known to diverge: attention.scale=sqrt_n"));
  Steps divided({});
  divided.scale_weight("blocks.0.attn.qkv.weight", 1e20f);
  const std::string text = divided.failure(1);
  CAPTURE(text);
  CHECK(contains(text, "blocks.0.attn"));
  CHECK(!contains(text, "known to diverge"));
}

TEST_CASE("a skipped step is as if its batch had not been there") {
  for (const std::vector<std::string>& keys : variants()) {
    CAPTURE(keys.empty() ? std::string("plain") : keys[0]);
    Steps skipping(with(keys, {"train.on_divergence=skip"}), 40);
    std::vector<bool> skipped;
    for (int i = 0; i < 18; ++i) skipped.push_back(skipping.run().skipped);
    const auto left_out = std::count(skipped.begin(), skipped.end(), true);
    CHECK(left_out >= 2);  // once an epoch
    CHECK(left_out < 9);
    CHECK(skipping.skipped.total == left_out);
    Steps other(keys);  // in whose data there is no NaN
    for (const bool out : skipped) {
      if (out) {
        other.leave_out();
      } else {
        other.run();
      }
    }
    CHECK(skipping.bytes() == other.bytes());
  }
}

TEST_CASE("a run that skips goes to its end, counts, logs, and can be stopped and resumed anywhere") {
  const Config config =
      small_config({"train.on_divergence=skip", "train.max_skipped=1", "train.ema_decay=0.9", "train.log_every_steps=2",
                    "train.checkpoint_every_steps=1", "train.keep_last=50"});
  const TemporaryFolder folder;
  std::vector<std::string> said;
  const std::string whole = folder / "whole";
  const TrainResult result = train(config, whole, "", -1, 40, &said);
  CHECK(result.status == "done");
  check_finite(whole);
  const double skipped = last_row(whole).number("skipped_steps");
  CHECK(skipped == 3);  // one an epoch
  CHECK(std::count_if(said.begin(), said.end(), [](const std::string& line) {
          return contains(line, "was skipped, loss nan, gradient norm nan (train.on_divergence=skip)");
        }) == 1);
  CHECK(std::count_if(said.begin(), said.end(),
                      [](const std::string& line) { return contains(line, "skipped    3 of 21 steps"); }) == 1);
  double before = 0;
  for (const MetricsRow& row : read_metrics(whole + "/metrics.jsonl")) {
    if (row.event() != "train") continue;
    CHECK(row.number("skipped_steps") >= before);
    before = row.number("skipped_steps");
    CHECK(std::isfinite(row.number("loss")));  // of the row's other step
  }
  CHECK(before == 3);

  const std::string cut = folder / "cut";
  for (std::int64_t stop = 1; stop <= 20; ++stop) CHECK(train(config, cut, "auto", stop).step == stop);
  CHECK(train(config, cut, "auto").status == "done");
  for (const char* file : {"/model.safetensors", "/state.safetensors"}) {
    CHECK(load_safetensors(whole + "/checkpoints/latest" + file).size() > 10);
    CHECK(fingerprint(load_safetensors(whole + "/checkpoints/latest" + file)) ==
          fingerprint(load_safetensors(cut + "/checkpoints/latest" + file)));
  }
  CHECK(last_row(cut).number("skipped_steps") == 3);
}

TEST_CASE("a run without a fault has the same bytes, whatever on_divergence says") {
  const TemporaryFolder folder;
  train(small_config({"train.epochs=1"}), folder / "stop", "", -1, -1);
  train(small_config({"train.epochs=1", "train.on_divergence=skip"}), folder / "skip", "", -1, -1);
  CHECK(fingerprint(load_safetensors(folder / "stop/checkpoints/latest/state.safetensors")) ==
        fingerprint(load_safetensors(folder / "skip/checkpoints/latest/state.safetensors")));
}

TEST_CASE("weights that overflow stop a run that skips, after so many steps in a row, also over a resume") {
  const std::vector<std::string> keys = {
      "train.on_divergence=skip",       "train.max_skipped=3",     "optimizer.lr=1e37", "schedule.name=constant",
      "train.checkpoint_every_steps=0", "train.eval_every_steps=0"};
  const TemporaryFolder folder;
  const auto message = [&](const std::vector<std::string>& more, const std::string& path,
                           const std::string& resume = "", std::int64_t stop = -1) {
    try {
      train(small_config(with(keys, more)), path, resume, stop, -1);
    } catch (const NumericError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  // Finite weights, as large as f32 has them.
  const std::string text = message({"optimizer.weight_decay=0"}, folder / "run");
  CAPTURE(text);
  CHECK(contains(text,
                 "diverged at step 5: the loss is nan, after 3 steps in a row that were skipped "
                 "(train.max_skipped), with lr 1e+37 and gradient norm nan; first seen: ["));
  CHECK(last_row(folder / "run").json().find("status")->as_text() == "diverged");
  CHECK(last_row(folder / "run").number("skipped_steps") == 3);
  CHECK(message({"optimizer.weight_decay=0"}, folder / "cut", "", 3).empty());
  check_finite(folder / "cut");
  CHECK(message({"optimizer.weight_decay=0"}, folder / "cut", "auto") == text);
  // Infinite ones.
  const std::string infinite = message({"optimizer.lr=1e39"}, folder / "infinite");
  CHECK(contains(infinite, "diverged at step 5: "));
  CHECK(contains(infinite, "first seen: the weights: "));
  CHECK(!RunFolder(folder / "infinite").newest_checkpoint());
}

TEST_CASE("weights that overflow are never saved, and the message is a divergence's") {
  const TemporaryFolder folder;
  for (const char* mode : {"stop", "skip"}) {
    const std::string path = folder / mode;
    std::string text;
    try {
      train(small_config({"optimizer.lr=1e39", "schedule.name=constant", "train.checkpoint_every_steps=1",
                          std::string("train.on_divergence=") + mode}),
            path, "", -1, -1);
    } catch (const NumericError& error) {
      text = error.what();
    }
    CAPTURE(text);
    CHECK(contains(text,
                   "[train] diverged at step 1: the weights or moments after it can't be saved, with lr 1e+39 and "
                   "gradient norm "));
    CHECK(contains(text, "has a NaN or infinity; nothing was saved"));
    CHECK(!RunFolder(path).newest_checkpoint());
    CHECK(last_row(path).json().find("status")->as_text() == "diverged");
  }
}

TEST_CASE("a best whose weights can't be saved is none: the end row tells of no other than the link") {
  const TemporaryFolder folder;
  // The average is not finite while the weights, and so their evaluation, are.
  const Config config = small_config({"train.ema_decay=0.9", "eval.weights=raw", "train.eval_every_steps=1"});
  Experiment experiment = small_experiment(config);
  Model* average = experiment.average.get();
  Trainer trainer(config, std::move(experiment), {.out = folder / "run"});
  trainer.on_eval = [&](const EvalInfo& eval) {
    CHECK(eval.best);
    const NoGradGuard no_grad;
    Tensor bias = average->find("head.bias");
    bias.fill_(kNan);
  };
  CHECK_THROWS_AS(trainer.run(), NumericError);
  CHECK_FALSE(RunFolder(folder / "run").best_step());
  CHECK(last_row(folder / "run").json().find("best_top1")->is_null());
}

TEST_CASE("a checkpoint never holds an infinite moment or average either") {
  const TemporaryFolder folder;
  for (const std::string& wanted : {std::string("optimizer.exp_avg_sq.head.bias"), std::string("ema.head.bias")}) {
    Steps steps({"train.ema_decay=0.9"});
    steps.run();
    NamedTensors moments = steps.optimizer->export_state(), average = steps.ema->export_state();
    for (NamedTensors* part : {&moments, &average}) {
      for (auto& [name, tensor] : *part) {
        const std::string full = (part == &moments ? "optimizer." : "ema.") + name;
        if (full == wanted) tensor = mul(tensor.clone(), kNan);
      }
    }
    steps.optimizer->import_state(moments);
    steps.ema->import_state(average, 1);
    RunFolder run(folder / "run");
    run.open();
    CheckpointInfo info;
    info.config = steps.config;
    info.state.step = 1;
    CHECK_THROWS_WITH_AS(save_checkpoint(run, info, *steps.experiment.model, *steps.optimizer, steps.ema.get()),
                         ("[checkpoint] " + wanted + " has a NaN or infinity; nothing was saved").c_str(),
                         NumericError);
    CHECK_FALSE(run.newest_checkpoint());
  }
}

TEST_CASE("a NaN on val alone neither wins nor blocks, and is said once") {
  const Config config = small_config({"train.epochs=4"});
  const TemporaryFolder folder;
  Experiment experiment = small_experiment(config);
  auto val = std::make_shared<StripeDataset>(23, 5, 2);
  experiment.val = val;
  std::vector<std::string> said;
  TrainerOptions options{.out = folder / "run"};
  options.report = [&](std::string_view line) { said.emplace_back(line); };
  Trainer trainer(config, std::move(experiment), options);
  const auto poison = [&](std::int64_t epoch) { val->poisoned = epoch == 0 || epoch == 2 ? 5 : -1; };
  poison(0);
  std::vector<double> finite;
  int evaluations = 0;
  trainer.on_eval = [&](const EvalInfo& eval) {
    if (eval.split != "val") return;
    const bool poisoned = val->poisoned >= 0;
    CHECK(std::isnan(eval.result.loss) == poisoned);
    if (poisoned) CHECK_FALSE(eval.best);
    if (!poisoned && finite.empty()) CHECK(eval.best);
    if (!poisoned) finite.push_back(eval.result.top1);
    poison(++evaluations);
  };
  const TrainResult result = trainer.run();
  CHECK(evaluations == 4);
  CHECK(result.status == "done");
  REQUIRE(result.best_top1);
  CHECK(*result.best_top1 == *std::max_element(finite.begin(), finite.end()));
  CHECK(RunFolder(folder / "run").best_step() == result.best_step);
  check_finite(folder / "run");
  CHECK(std::count_if(said.begin(), said.end(),
                      [](const std::string& line) { return contains(line, "the loss on val is nan"); }) == 1);
}

TEST_CASE("where every evaluation is a NaN, the last weights are tested") {
  const Config config = small_config({"train.epochs=1"});
  const TemporaryFolder folder;
  Experiment experiment = small_experiment(config);
  auto val = std::make_shared<StripeDataset>(23, 5, 2);
  val->poisoned = 0;
  experiment.val = val;
  const TrainResult result = Trainer(config, std::move(experiment), {.out = folder / "run"}).run();
  CHECK(result.status == "done");
  CHECK_FALSE(result.best_top1);
  REQUIRE(result.test);
  CHECK(std::isfinite(result.test->loss));
}
