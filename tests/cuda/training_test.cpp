// Training on a GPU: the CPU's losses, masks, evaluations, norms and files; 16-bit precisions; runs that change device.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "apps/training/classifier.h"
#include "apps/training/device.h"
#include "apps/training/profile_run.h"
#include "apps/training/rehearsal.h"
#include "apps/training/trainer.h"
#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/file.h"
#include "engine/memory.h"
#include "models/vision/vit.h"
#include "ops/binary.h"
#include "tests/cuda/gpu.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"
#if defined(POLYGRAD_HOST_CUDA)
#include "tests/cuda/host/host_cuda.h"
#endif

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// Everything random at once, and everything that has state.
const std::vector<std::string> kAllOn = {"model.dropout=0.1", "model.drop_path=0.2",       "attention.dropout=0.1",
                                         "augment.mixup=0.8", "augment.cutmix=1",          "train.ema_decay=0.9",
                                         "train.clip_grad=1", "train.label_smoothing=0.1", "train.epochs=null",
                                         "train.max_steps=4", "train.eval_every_steps=4"};
const std::string kCpu = "device=cpu", kGpu = "device=cuda:0";

std::vector<std::string> with(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

struct Run {
  std::vector<double> losses, norms;
  EvalResult val, test;
  TrainResult result;
};

Run run(const std::vector<std::string>& extra, const std::string& folder = "", const std::string& resume = "",
        std::int64_t stop_after = -1) {
  const Config config = small_config(extra);
  Trainer trainer(config, small_experiment(config, 25), {.out = folder, .resume = resume});
  Run run;
  std::stop_source stop;
  trainer.on_step = [&](const StepInfo& info) {
    run.losses.push_back(info.loss);
    run.norms.push_back(info.grad_norm);
    if (info.step == stop_after) stop.request_stop();
  };
  trainer.on_eval = [&](const EvalInfo& info) { (info.split == "val" ? run.val : run.test) = info.result; };
  run.result = trainer.run(stop.get_token());
  return run;
}

// The largest relative difference.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

std::string bytes_of(const std::string& folder) {
  return read_file(folder + "/checkpoints/latest/model.safetensors") +
         read_file(folder + "/checkpoints/latest/state.safetensors");
}

std::vector<double> norms_of(const std::string& folder) {
  std::vector<double> norms;
  for (const MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    if (row.event() != "norms") continue;
    for (const char* key : {"attention", "attention_max", "jacobian_s", "jacobian_q", "jacobian_k"}) {
      norms.push_back(row.number(key));
    }
  }
  return norms;
}

}  // namespace

TEST_CASE("a run in f32 is the CPU's: losses, masks, evaluations, norms; and the same to the last byte each time") {
  POLYGRAD_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string cpu_folder = folder / "cpu", gpu_folder = folder / "gpu", again = folder / "again";
  const std::vector<std::string> keys =
      with(kAllOn, {"probe.norms=true", "probe.samples=3", "probe.every_steps=4", "train.accumulate=2"});
  const Run cpu = run(with(keys, {kCpu}), cpu_folder), ours = run(with(keys, {kGpu}), gpu_folder);
  CHECK(cpu.losses.size() == 4);
  CHECK(difference(ours.losses, cpu.losses) < 1e-5);  // a mask that differs in one place changes the third digit
  CHECK(difference(ours.norms, cpu.norms) < 1e-4);
  for (const auto& [here, there] : {std::pair(ours.val, cpu.val), std::pair(ours.test, cpu.test)}) {
    CHECK(here.count == there.count);
    CHECK(here.top1 == there.top1);
    CHECK(here.loss == doctest::Approx(there.loss).epsilon(1e-5));
  }
  const std::vector<double> norms = norms_of(gpu_folder);
  CHECK(norms.size() == 2 * 2 * 5);  // before the first step and after the last; two layers
  CHECK(difference(norms, norms_of(cpu_folder)) < 1e-4);

  run(with(keys, {kGpu}), again);
  CHECK(bytes_of(again) == bytes_of(gpu_folder));

  const MetricsRow start = read_metrics(gpu_folder + "/metrics.jsonl").front();
  CHECK(*start.json().find("device") == JsonValue::text("cuda:0"));
  CHECK(*start.json().find("device_name") == JsonValue::text(device_name(gpu())));
}

TEST_CASE("a run goes on on the other device") {
  POLYGRAD_NEEDS_GPU();
  const TemporaryFolder folder;
  const Run whole = run(with(kAllOn, {kCpu}), folder / "whole");
  for (const bool from_gpu : {true, false}) {
    CAPTURE(from_gpu);
    const std::string out = folder / (from_gpu ? "from_gpu" : "from_cpu");
    CHECK(run(with(kAllOn, {from_gpu ? kGpu : kCpu}), out, "", 2).result.status == "stopped");
    const Run rest = run(with(kAllOn, {from_gpu ? kCpu : kGpu}), out, "auto");
    CHECK(rest.result.status == "done");
    const std::vector<double> expected(whole.losses.begin() + 2, whole.losses.end());
    CHECK(difference(rest.losses, expected) < 1e-5);
    CHECK(rest.val.loss == doctest::Approx(whole.val.loss).epsilon(1e-5));
  }
  // On the same one: to the last byte.
  run(with(kAllOn, {kGpu}), folder / "straight");
  run(with(kAllOn, {kGpu}), folder / "halting", "", 3);
  run(with(kAllOn, {kGpu}), folder / "halting", "auto");
  CHECK(bytes_of(folder / "halting") == bytes_of(folder / "straight"));

  const std::string checkpoint = (folder / "straight") + "/checkpoints/latest";
  const Classifier here = Classifier::load(checkpoint), there = Classifier::load(checkpoint, "", gpu());
  CHECK(there.model().device() == gpu());
  const Tensor images = randn({3, 1, 8, 8});
  const std::vector<float> ours = there.logits(images).to_vector<float>(),
                           theirs = here.logits(images).to_vector<float>();
  for (std::size_t i = 0; i < theirs.size(); ++i) CHECK(ours[i] == doctest::Approx(theirs[i]).epsilon(1e-5));
}

TEST_CASE("models can be handed to other threads: a new trainer's, a trained one's, a loaded one's") {
  POLYGRAD_NEEDS_GPU();
  const TemporaryFolder folder;
  // A graph's end would wait.
  const Config config = small_config({kGpu, "train.epochs=null", "train.max_steps=2", "train.capture=off"});
  // Each thread has a stream, which waits for no other's.
  const auto elsewhere = [](const Model& model) {
    std::vector<float> values;
    std::thread([&] { values = model.find("head.weight").to_vector<float>(); }).join();
    return values;
  };
  Experiment experiment = small_experiment(config);
  const std::vector<float> initial = experiment.model->find("head.weight").to_vector<float>();
  experiment.val = experiment.test = nullptr;  // nobody looks at the weights of the last step
  {
    Trainer trainer(config, small_experiment(config), {});
    CHECK(elsewhere(trainer.model()) == initial);
  }
  Trainer trainer(config, std::move(experiment), {});
  trainer.run();
  const std::vector<float> trained = elsewhere(trainer.model());
  CHECK(trained == trainer.model().find("head.weight").to_vector<float>());
  CHECK(trained != initial);
  run({kGpu, "train.epochs=null", "train.max_steps=2"}, folder / "run");
  const Classifier loaded = Classifier::load((folder / "run") + "/checkpoints/latest", "", gpu());
  const std::vector<float> values = elsewhere(loaded.model());
  CHECK(values == loaded.model().find("head.weight").to_vector<float>());
}

TEST_CASE("bf16 and f16: near f32's losses, not on them, f32 in the files") {
  POLYGRAD_NEEDS_GPU();
  const TemporaryFolder folder;
  for (const char* phi : {"attention.phi=x3", "attention.phi=softmax"}) {
    const std::vector<std::string> keys = with(kAllOn, {phi, kGpu});
    const Run wide = run(with(keys, {kCpu}));
    for (const char* precision : {"bf16", "f16"}) {
      CAPTURE(phi);
      CAPTURE(precision);
      const std::string out = (folder / precision) + phi;
      const Run narrow = run(with(keys, {std::string("train.precision=") + precision}), out);
      const double error = difference(narrow.losses, wide.losses);
      CHECK(error > 1e-7);
      CHECK(error < (std::string(precision) == "f16" ? 2e-3 : 1e-2));
      for (const auto& [name, tensor] : load_safetensors(out + "/checkpoints/latest/model.safetensors")) {
        CHECK(tensor.dtype() == DType::f32);
      }
    }
  }
}

TEST_CASE("steps captured as a graph are the plain ones to the last byte") {
  POLYGRAD_NEEDS_GPU();
  // 25 samples in batches of 10: the incomplete third of each epoch comes alone, and is never captured.
  const std::vector<std::string> keys = {"augment.mixup=0.8",
                                         "train.ema_decay=0.9",
                                         "train.clip_grad=0.5",
                                         "train.epochs=null",
                                         "train.max_steps=6",
                                         "train.eval_every_steps=6",
                                         kGpu};
  for (const char* precision : {"train.precision=f32", "train.precision=f16"}) {
    CAPTURE(precision);
    const TemporaryFolder folder;
    const Run plain = run(with(keys, {precision, "train.capture=off"}), folder / "plain");
#if defined(POLYGRAD_HOST_CUDA)
    const std::uint64_t before = host_cuda::counts().graphs;
#endif
    const Run captured = run(with(keys, {precision, "train.capture=on"}), folder / "captured");
#if defined(POLYGRAD_HOST_CUDA)
    CHECK(host_cuda::counts().graphs - before == 3);  // the second, fourth and fifth step
#endif
    CHECK(captured.losses == plain.losses);
    CHECK(captured.norms == plain.norms);
    CHECK(bytes_of(folder / "captured") == bytes_of(folder / "plain"));
  }
  for (const auto& [key, why] :
       {std::pair("model.drop_path=0.1", "drop path"), std::pair("train.accumulate=2", "2 micro-batches"),
        std::pair("device=cpu", "only a GPU's steps")}) {
    CHECK_THROWS_WITH_AS(run(with(keys, {key, "train.capture=on"})), doctest::Contains(why), ConfigError);
  }
}

namespace {

// Calls these about each forward: before its kernels are started, and after.
class HookedVit : public Vit {
 public:
  using Vit::Vit;
  std::function<void()> before = [] {}, after = [] {};
  Tensor forward(const Tensor& images, const ForwardContext& context) const override {
    before();
    Tensor logits = Vit::forward(images, context);
    after();
    return logits;
  }
};

// Puts one in the place of the experiment's model; it lives as long.
HookedVit& hook(Experiment& experiment, const Config& config) {
  auto model = std::make_unique<HookedVit>(dynamic_cast<const Vit&>(*experiment.model).config());
  initialize(*model, config.seed("seed"));
  HookedVit& result = *model;
  experiment.model = std::move(model);
  return result;
}

// While one is alive, the GPU gives no more memory than it has given, but for a few single numbers.
struct NoMoreMemory {
  NoMoreMemory() {
    trim_memory(gpu());
    const MemoryStats stats = memory_stats(gpu());
    set_memory_limit(stats.bytes_in_use + stats.bytes_cached + 4096, gpu());
  }
  ~NoMoreMemory() { set_memory_limit(0, gpu()); }
};

}  // namespace

TEST_CASE("a plain step that finds no memory beside a graph takes the graph's, and is as exact") {
  POLYGRAD_NEEDS_GPU();
  const std::vector<std::string> keys = {"train.epochs=null", "train.max_steps=6", "train.eval_every_steps=6", kGpu};
  for (const char* precision : {"train.precision=f32", "train.precision=f16"}) {
    CAPTURE(precision);
    const Run plain = run(with(keys, {precision, "train.capture=off"}));
    const Config config = small_config(with(keys, {precision, "train.capture=on"}));
    Trainer trainer(config, small_experiment(config, 25), {});
    std::vector<double> losses, norms;
    std::optional<NoMoreMemory> limit;
    trainer.on_step = [&](const StepInfo& info) {
      losses.push_back(info.loss);
      norms.push_back(info.grad_norm);
      limit.reset();
      if (info.step == 2) limit.emplace();  // the third is the epoch's incomplete last one
    };
#if defined(POLYGRAD_HOST_CUDA)
    const std::uint64_t before = host_cuda::counts().graphs;
#endif
    trainer.run();
#if defined(POLYGRAD_HOST_CUDA)
    CHECK(host_cuda::counts().graphs - before == 2);  // the second and fifth step: the fourth finds no graph
#endif
    CHECK(losses == plain.losses);
    CHECK(norms == plain.norms);
  }
}

namespace {

// One step in f16 with this loss scale, on a model whose head multiplies gradients by `head`.
struct ScaledStep {
  LossScale scale;
  SkippedSteps skipped;
  StepResult result;
  double moved = 0;  // the largest change of a weight
  std::string failure;
};
ScaledStep scaled_step(double first_scale, double head, int steps = 1) {
  const Config config = small_config({kGpu, "train.precision=f16"});
  Experiment experiment = small_experiment(config);
  {
    const NoGradGuard no_grad;
    Tensor weight = experiment.model->find("head.weight");
    weight.copy_(mul(weight, head));
  }
  experiment.model->to(gpu());
  const std::unique_ptr<Optimizer> optimizer = build_optimizer(config, *experiment.model);
  Loader loader(experiment.train, training_loader(config, experiment));
  SingleProcess single;
  ScheduleValue schedule;
  schedule.lr = 0.01;
  ScaledStep step;
  step.scale.scale = first_scale;
  TrainStep train_step(*experiment.model, *optimizer, nullptr, loader, single, {.precision = Precision::f16},
                       step.skipped, &step.scale);
  const std::vector<float> before = experiment.model->find("blocks.0.mlp.fc1.weight").to_vector<float>();
  try {
    for (int i = 0; i < steps; ++i) {
      step.result = train_step.run(i, step.result.next, schedule);
    }
  } catch (const NumericError& error) {
    step.failure = error.what();
  }
  const std::vector<float> after = experiment.model->find("blocks.0.mlp.fc1.weight").to_vector<float>();
  for (std::size_t i = 0; i < after.size(); ++i) {
    step.moved = std::max(step.moved, std::abs(static_cast<double>(after[i]) - static_cast<double>(before[i])));
  }
  return step;
}

}  // namespace

TEST_CASE("f16: a step that overflows is skipped and halves the loss scale; one that does not moves the weights") {
  POLYGRAD_NEEDS_GPU();
  const ScaledStep good = scaled_step(1024, 1);
  CHECK_FALSE(good.result.skipped);
  CHECK(good.moved > 1e-3);
  CHECK(good.scale == LossScale{.scale = 1024, .good_steps = 1});
  // The scale is taken out again.
  CHECK(good.result.grad_norm == doctest::Approx(scaled_step(1, 1).result.grad_norm).epsilon(1e-2));

  const ScaledStep bad = scaled_step(0x1p40, 1);
  CHECK(bad.result.skipped);
  CHECK(bad.moved == 0);
  CHECK(bad.scale == LossScale{.scale = 0x1p39, .good_steps = 0});
  CHECK(bad.skipped == SkippedSteps{.total = 1, .in_a_row = 1});
  CHECK(std::isfinite(bad.result.loss));

  // However small the scale: what overflows is the model's own gradient.
  const ScaledStep hopeless = scaled_step(2, 1e7, 5);
  CHECK(hopeless.failure.find("diverged at step 2: 2 steps in a row were skipped, and the loss scale fell below 1") !=
        std::string::npos);
  CHECK(hopeless.failure.find("blocks.1") != std::string::npos);  // where the first infinity arose
  CHECK(hopeless.moved == 0);
}

TEST_CASE("the loss scale doubles after 2000 good steps, and a checkpoint keeps it") {
  LossScale scale;
  CHECK(scale.scale == 65536);
  for (int i = 0; i < 1999; ++i) scale.step_done();
  CHECK(scale.scale == 65536);
  scale.step_done();
  CHECK(scale == LossScale{.scale = 131072});
  scale.step_skipped();
  CHECK(scale == LossScale{.scale = 65536, .good_steps = 0});

  POLYGRAD_NEEDS_GPU();
  const TemporaryFolder folder;
  const std::string out = folder / "run";
  const std::vector<std::string> keys = {kGpu, "train.precision=f16", "train.epochs=null", "train.max_steps=4",
                                         "attention.phi=x3"};
  run(keys, out, "", 2);
  // As if the run had met an overflow, and many good steps.
  const std::string file = out + "/checkpoints/latest/state.json";
  std::string text = read_file(file);
  text.resize(text.rfind(",\n  \"hash\""));  // as the first versions wrote it: without a hash of what stands before
  text += "\n}\n";
  const auto put = [&](const std::string& old, const std::string& now) {
    const std::size_t at = text.find(old);
    REQUIRE(at != std::string::npos);
    text.replace(at, old.size(), now);
  };
  put("\"scale\": 65536", "\"scale\": 1099511627776");
  put("\"good_steps\": 2", "\"good_steps\": 7");
  put("\"total\": 0", "\"total\": 3");
  write_file_atomically(file, text);
  const Run rest = run(keys, out, "auto");
  CHECK(rest.result.status == "done");
  const std::vector<MetricsRow> rows = read_metrics(out + "/metrics.jsonl");
  CHECK(rows.back().event() == "end");
  CHECK(rows.back().number("skipped_steps") == 5);  // both steps of the rest overflow
  const TrainingState last = read_checkpoint_info(out + "/checkpoints/latest").state;
  CHECK(last.loss_scale == LossScale{.scale = 0x1p38, .good_steps = 0});
  CHECK(last.skipped == SkippedSteps{.total = 5, .in_a_row = 2});
  for (const MetricsRow& row : rows) {
    if (row.event() != "train" || row.step() <= 2) continue;
    CHECK(std::isnan(row.number("grad_norm")));  // null
    CHECK(std::isfinite(row.number("loss")));
  }
}

TEST_CASE("a divergence names step and module") {
  POLYGRAD_NEEDS_GPU();
  const Config config = small_config({kGpu});
  Experiment experiment = small_experiment(config);
  auto poisoned = std::make_shared<StripeDataset>(64, 5, 1);
  poisoned->poisoned = 3;
  experiment.train = poisoned;
  Trainer trainer(config, std::move(experiment), {});
  std::string failure;
  try {
    trainer.run();
  } catch (const NumericError& error) {
    failure = error.what();
  }
  CHECK(failure.rfind("[train] diverged at step ", 0) == 0);
  CHECK(failure.find("the loss is nan") != std::string::npos);
  CHECK(failure.find("patch_embed") != std::string::npos);
}

TEST_CASE("a step that is not finite is left out, captured or not, and the next one is as good") {
  POLYGRAD_NEEDS_GPU();
  std::string weights[2];
  for (const bool capture : {true, false}) {
    CAPTURE(capture);
    const Config config = small_config({kGpu, capture ? "train.capture=on" : "train.capture=off",
                                        "train.on_divergence=skip", "train.max_skipped=1", "train.ema_decay=0.9"});
    Experiment experiment = small_experiment(config);
    auto poisoned = std::make_shared<StripeDataset>(64, 5, 1);
    poisoned->poisoned = 3;
    experiment.train = poisoned;
    Trainer trainer(config, std::move(experiment), {});
    int not_finite = 0;
    trainer.on_step = [&](const StepInfo& info) { not_finite += std::isnan(info.loss) ? 1 : 0; };
    CHECK(trainer.run().status == "done");
    CHECK(not_finite == 3);  // once an epoch
    for (const auto& [name, tensor] : trainer.model().state()) {
      CHECK(all_finite(tensor));
      const std::vector<float> values = tensor.to_vector<float>();
      weights[capture].append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("where capturing fails, auto goes on with plain steps and says so once, on is the error") {
  POLYGRAD_NEEDS_GPU();
  const Tensor number = ones({1}, {.device = gpu()});
  for (const char* precision : {"train.precision=f32", "train.precision=f16"}) {
    CAPTURE(precision);
    const std::vector<std::string> keys = {precision, "train.epochs=null", "train.max_steps=5", kGpu};
    const Run plain = run(with(keys, {"train.capture=off"}));
    for (const char* capture : {"train.capture=auto", "train.capture=on"}) {
      CAPTURE(capture);
      const Config config = small_config(with(keys, {capture}));
      Experiment experiment = small_experiment(config, 25);
      hook(experiment, config).after = [&] { number.to_vector<float>(); };  // can't be captured
      std::vector<std::string> warnings;
      Trainer trainer(config, std::move(experiment), {.out = "", .report = [&](std::string_view line) {
                                                        if (line.starts_with("warning")) warnings.emplace_back(line);
                                                      }});
      std::vector<double> losses, norms;
      trainer.on_step = [&](const StepInfo& info) {
        losses.push_back(info.loss);
        norms.push_back(info.grad_norm);
      };
      if (std::string(capture) == "train.capture=on") {
        CHECK_THROWS_WITH_AS(trainer.run(), doctest::Contains("[capture] a copy to the host"), InternalError);
        CHECK(losses.size() == 1);
        CHECK(warnings.empty());
        continue;
      }
      trainer.run();
      CHECK(losses == plain.losses);
      CHECK(norms == plain.norms);
      REQUIRE(warnings.size() == 1);
      CHECK(warnings.front().find("[capture] a copy to the host") != std::string::npos);
    }
  }
}

TEST_CASE("the search for a divergence takes a graph's memory; without enough it is a divergence all the same") {
  POLYGRAD_NEEDS_GPU();
  for (const bool capture : {true, false}) {
    CAPTURE(capture);
    const Config config = small_config({kGpu, capture ? "train.capture=on" : "train.capture=off"});
    Experiment experiment = small_experiment(config);
    HookedVit& model = hook(experiment, config);
    Trainer trainer(config, std::move(experiment), {});
    std::optional<NoMoreMemory> limit;
    int forwards = 0;
    model.before = [&] {
      if (++forwards == 4 && !capture) throw OutOfMemoryError("[memory] no more");
    };
    trainer.on_step = [&](const StepInfo& info) {
      if (info.step != 2) return;
      const NoGradGuard no_grad;
      for (const char* path : {"blocks.1.mlp.fc1.weight", "blocks.1.mlp.fc2.weight"}) {  // finite, their product not
        Tensor weight = model.find(path);
        weight.copy_(mul(weight, 1e30));
      }
      if (capture) limit.emplace();
    };
    std::string failure;
    try {
      trainer.run();
    } catch (const NumericError& error) {
      failure = error.what();
    }
    CHECK(failure.rfind("[train] diverged at step 3: the loss is nan", 0) == 0);
    CHECK(failure.find(capture ? "blocks.1.mlp" : "first seen: not found: [memory] no more;") != std::string::npos);
  }
}

TEST_CASE("auto takes the GPU where there is one, and a profile is of the GPU's work") {
  POLYGRAD_NEEDS_GPU();
  CHECK(choose_device("auto") == gpu());
  CHECK(choose_device("cpu") == Device::cpu());
  CHECK_THROWS_WITH_AS(choose_device("cuda:7"), doctest::Contains("there is no cuda:7"), DeviceError);
  CHECK_THROWS_AS(choose_device("gpu"), ValueError);
  const Config config = small_config();  // device: auto
  const ProfileRunResult profile = profile_run(config, small_experiment(config), {.warmup = 0, .steps = 1});
  CHECK(profile.device == gpu());
  CHECK(profile.peak_tensor_mib > 0);
  CHECK(profile.seconds > 0);
  CHECK(profile.loss == doctest::Approx(std::log(5)).epsilon(0.2));
}

#if defined(POLYGRAD_HOST_CUDA)

TEST_CASE("without a GPU auto is the CPU") {
  host_cuda::settings().devices = 0;
  const Device found = choose_device("auto");
  host_cuda::settings().devices = 1;
  CHECK(found == Device::cpu());
}

TEST_CASE("the host waits as often for a deep model's step as for a shallow one's") {
  const auto waits = [](const char* depth) {
    const Config config = small_config({kGpu, depth, "train.clip_grad=1", "model.drop_path=0.1"});
    Rehearsal rehearsal(config, small_experiment(config), 0);
    rehearsal.step();
    const std::uint64_t before = host_cuda::counts().waits;
    rehearsal.step();
    return host_cuda::counts().waits - before;
  };
  const std::uint64_t shallow = waits("model.depth=1");
  CHECK(waits("model.depth=3") == shallow);
  CHECK(shallow < 16);
}

#endif
