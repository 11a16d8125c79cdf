// The trainer's promises: exact resume, results that do not depend on threads, workers, probes or evaluations, a stop
// that saves, a divergence that leaves finite checkpoints.
#include "apps/training/trainer.h"

#include <doctest/doctest.h>
#include <xmmintrin.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <thread>

#include "engine/error.h"
#include "engine/file.h"
#include "engine/parallel.h"
#include "engine/safetensors.h"
#include "ops/gemm_provider.h"
#include "ops/precision.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// Everything random at once, and everything that has state.
const std::vector<std::string> kAllOn = {"model.dropout=0.1",   "model.drop_path=0.2", "attention.dropout=0.1",
                                         "augment.flip=true",   "augment.mixup=0.8",   "augment.cutmix=1",
                                         "train.ema_decay=0.9", "train.clip_grad=1",   "train.label_smoothing=0.1"};

struct RunFiles {
  std::string model, state;
  bool operator==(const RunFiles&) const = default;
};

RunFiles files_of(const std::string& folder) {
  return {read_file(folder + "/checkpoints/latest/model.safetensors"),
          read_file(folder + "/checkpoints/latest/state.safetensors")};
}

TrainResult run(const Config& config, const std::string& folder, const std::string& resume = "",
                std::int64_t stop_after = -1, std::int64_t samples = 64, std::vector<std::string> allow = {}) {
  Trainer trainer(config, small_experiment(config, samples),
                  {.out = folder, .resume = resume, .allow_change = std::move(allow)});
  std::stop_source stop;
  trainer.on_step = [&](const StepInfo& info) {
    if (info.step == stop_after) stop.request_stop();
  };
  return trainer.run(stop.get_token());
}

RunFiles run_whole(std::vector<std::string> extra) {
  const TemporaryFolder folder;
  run(small_config(extra), folder.path() + "/run");
  return files_of(folder.path() + "/run");
}

std::vector<std::string> with(std::vector<std::string> list, const std::vector<std::string>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::map<std::int64_t, int> count_train_rows(const std::string& folder) {
  std::map<std::int64_t, int> counts;
  for (const MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    if (row.event() == "train") ++counts[row.step()];
  }
  return counts;
}

}  // namespace

TEST_CASE("a run stopped at any step and resumed ends with the bytes of an uninterrupted one") {
  // 64 samples in micro-batches of 10, two a step: 4 steps an epoch, the last one of a single incomplete batch.
  const Config config = small_config(with(kAllOn, {"train.accumulate=2", "train.log_every_steps=3"}));
  const TemporaryFolder folder;
  const std::string whole = folder.path() + "/whole", cut = folder.path() + "/cut";
  CHECK(run(config, whole).status == "done");
  std::int64_t stops = 0;
  for (const std::int64_t stop : {1, 4, 6, 11}) {
    const TrainResult result = run(config, cut, "auto", stop);
    CHECK(result.status == "stopped");
    CHECK(result.step == stop);
    ++stops;
  }
  const TrainResult result = run(config, cut, "auto");
  CHECK(result.status == "done");
  CHECK(result.step == 12);
  CHECK(files_of(whole) == files_of(cut));
  CHECK(count_train_rows(whole) == count_train_rows(cut));
  std::vector<std::int64_t> starts;
  for (const MetricsRow& row : read_metrics(cut + "/metrics.jsonl")) {
    if (row.event() == "start") starts.push_back(row.step());
  }
  CHECK(starts == std::vector<std::int64_t>{0, 1, 4, 6, 11});
  // Losses of rows that a stop fell into are those of the uninterrupted run.
  std::vector<double> losses[2];
  for (const std::string& path : {whole, cut}) {
    for (const MetricsRow& row : read_metrics(path + "/metrics.jsonl")) {
      if (row.event() == "train") losses[path == cut].push_back(row.number("loss"));
    }
  }
  CHECK(losses[0] == losses[1]);

  const TrainResult again = run(config, cut, "auto");
  CHECK(again.already_done);
  REQUIRE(again.test);
  CHECK(again.test->count == 17);
}

TEST_CASE("the weights do not depend on threads, workers, or the caller's floating-point state") {
  const RunFiles expected = run_whole(with(kAllOn, {"threads=1", "data.workers=0"}));
  for (const char* threads : {"threads=2", "threads=3", "threads=16"}) {
    for (const char* workers : {"data.workers=0", "data.workers=1", "data.workers=4"}) {
      CAPTURE(threads);
      CAPTURE(workers);
      CHECK(run_whole(with(kAllOn, {threads, workers})) == expected);
    }
  }
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);  // flush to zero, denormals are zero
  const RunFiles flushed = run_whole(with(kAllOn, {"threads=2"}));
  _mm_setcsr(saved);
  CHECK(flushed == expected);
  CHECK_FALSE(run_whole(with(kAllOn, {"seed=1"})) == expected);
}

TEST_CASE("evaluations, probes, logging and checkpoints leave the weights alone") {
  const RunFiles expected = run_whole(with(kAllOn, {"train.eval_every_steps=0"}));
  CHECK(run_whole(with(kAllOn, {"train.eval_every_steps=1"})) == expected);
  CHECK(run_whole(with(kAllOn, {"probe.norms=true", "probe.every_steps=1", "probe.samples=7"})) == expected);
  CHECK(run_whole(with(kAllOn, {"train.checkpoint_every_steps=1"})) == expected);
  CHECK(run_whole(with(kAllOn, {"train.log_every_steps=5"})) == expected);
}

TEST_CASE("each provider of matrix products trains, with its own bits and the same result") {
  if (!has_gemm_provider(GemmProvider::onednn)) return;
  const GemmProvider before = gemm_provider();
  const TemporaryFolder folder;
  std::vector<NamedTensors> weights;
  for (const GemmProvider provider : {GemmProvider::eigen, GemmProvider::onednn}) {
    set_gemm_provider(provider);
    const std::string path = folder.path() + "/" + to_string(provider);
    run(small_config({"train.epochs=1"}), path);
    weights.push_back(load_safetensors(path + "/checkpoints/latest/model.safetensors"));
  }
  set_gemm_provider(before);
  for (std::size_t i = 0; i < weights[0].size(); ++i) {
    const std::vector<float> a = weights[0][i].second.to_vector<float>(), b = weights[1][i].second.to_vector<float>();
    for (std::size_t k = 0; k < a.size(); ++k) CHECK(std::abs(a[k] - b[k]) < 2e-3f);
  }
}

TEST_CASE("a run in bf16: resumed to the last byte, the same for any threads, f32 in its files") {
  if (!precision_obstacle(Precision::bf16).empty()) return skip("no bf16 units: this CPU, or no oneDNN in this build");
  const std::vector<std::string> narrow = with(kAllOn, {"train.precision=bf16", "train.accumulate=2"});
  const RunFiles expected = run_whole(with(narrow, {"threads=1"}));
  CHECK(run_whole(with(narrow, {"threads=2"})) == expected);
  CHECK(run_whole(with(narrow, {"threads=16"})) == expected);
  CHECK_FALSE(run_whole(with(kAllOn, {"train.accumulate=2"})) == expected);

  const Config config = small_config(narrow);
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/run";
  CHECK(run(config, path, "auto", 5).status == "stopped");
  const TrainResult result = run(config, path, "auto");
  CHECK(result.status == "done");
  CHECK(files_of(path) == expected);
  CHECK(current_precision() == Precision::f32);
  for (const auto& [name, tensor] : load_safetensors(path + "/checkpoints/latest/model.safetensors")) {
    CHECK(tensor.dtype() == DType::f32);
  }
  for (const MetricsRow& row : read_metrics(path + "/metrics.jsonl")) {
    if (row.event() == "start") CHECK(*row.json().find("precision") == JsonValue::text("bf16"));
  }
  CHECK_THROWS_WITH_AS(run(small_config(with(kAllOn, {"train.accumulate=2"})), path, "auto"),
                       doctest::Contains("train.precision"), ConfigError);
}

TEST_CASE("a run in a precision that can't be had is refused before anything else") {
  const TemporaryFolder folder;
  const GemmProvider before = gemm_provider();
  set_gemm_provider(GemmProvider::eigen);
  const Config config = small_config({"train.precision=bf16"});
  std::string got;
  try {
    run(config, folder.path() + "/run");
  } catch (const ConfigError& error) {
    got = error.what();
  }
  set_gemm_provider(before);
  CHECK(got.rfind("[config] train.precision: bf16 products on the CPU are oneDNN's", 0) == 0);
  CHECK_FALSE(std::filesystem::exists(folder.path() + "/run"));
}

TEST_CASE("accumulating 4 + 4 + 2 samples is a batch of 10") {
  const TemporaryFolder folder;
  const std::vector<std::string> common = {
      "optimizer.name=sgd",       "optimizer.momentum=0", "schedule.name=constant", "train.max_steps=1",
      "model.drop_path=0.2",      "model.dropout=0.1",    "attention.dropout=0.1",  "train.label_smoothing=0.1",
      "optimizer.weight_decay=0", "optimizer.lr=1"};
  run(small_config(with(common, {"train.batch_size=10"})), folder.path() + "/one", "", -1, 10);
  run(small_config(with(common, {"train.batch_size=4", "train.accumulate=3"})), folder.path() + "/three", "", -1, 10);
  const NamedTensors one = load_safetensors(folder.path() + "/one/checkpoints/latest/model.safetensors");
  const NamedTensors three = load_safetensors(folder.path() + "/three/checkpoints/latest/model.safetensors");
  for (std::size_t i = 0; i < one.size(); ++i) {
    const std::vector<float> a = one[i].second.to_vector<float>(), b = three[i].second.to_vector<float>();
    for (std::size_t k = 0; k < a.size(); ++k) CHECK(std::abs(a[k] - b[k]) <= 1e-6f);
  }
}

TEST_CASE("a divergence is named, and the latest checkpoint is finite") {
  const Config config = small_config({"train.checkpoint_every_steps=1", "train.eval_every_steps=0"});
  const TemporaryFolder folder;
  Experiment experiment = small_experiment(config);
  auto poisoned = std::make_shared<StripeDataset>(64, 5, 1);
  poisoned->poisoned = 40;
  experiment.train = poisoned;
  Trainer trainer(config, std::move(experiment), {.out = folder.path() + "/run"});
  std::string message;
  try {
    trainer.run();
  } catch (const NumericError& error) {
    message = error.what();
  }
  CHECK(message.find("[train] diverged at step") == 0);
  CHECK(message.find("patch_embed") != std::string::npos);  // the first layer that saw it
  for (const auto& [name, tensor] : load_safetensors(folder.path() + "/run/checkpoints/latest/model.safetensors"))
    CHECK(all_finite(tensor));
  const std::vector<MetricsRow> rows = read_metrics(folder.path() + "/run/metrics.jsonl");
  CHECK(rows.back().event() == "end");
  CHECK(rows.back().json().find("status")->as_text() == "diverged");
}

TEST_CASE("best is chosen on validation data and the test images are seen once") {
  const Config config = small_config({"train.epochs=6", "train.keep_last=1"});
  const TemporaryFolder folder;
  const TrainResult result = run(config, folder.path() + "/run");
  double best = -1;
  std::int64_t best_step = 0, tests = 0;
  for (const MetricsRow& row : read_metrics(folder.path() + "/run/metrics.jsonl")) {
    if (row.event() != "eval") continue;
    if (row.json().find("split")->as_text() == "test") {
      ++tests;
      CHECK(row.step() == result.best_step);
      CHECK(row.json().find("count")->as_int() == 17);
    } else {
      CHECK(row.json().find("count")->as_int() == 23);
      if (row.number("top1") > best) {
        best = row.number("top1");
        best_step = row.step();
      }
    }
  }
  CHECK(tests == 1);
  CHECK(result.best_top1 == best);
  CHECK(result.best_step == best_step);
  CHECK(RunFolder(folder.path() + "/run").best_step() == best_step);
  CHECK(RunFolder(folder.path() + "/run").checkpoint_steps().size() <= 2);
}

TEST_CASE("the small run learns") {
  const TemporaryFolder folder;
  // Chance is 20 %. With 23 validation samples and so small a model, much more would test luck.
  CHECK(*run(small_config({"train.epochs=40"}), folder.path() + "/run", "", -1, 256).best_top1 > 60);
}

TEST_CASE("a resume with another configuration or other data is refused, key by key") {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/run";
  run(small_config(), path, "", 5);
  const auto message = [&](const Config& config, std::vector<std::string> allow = {}, std::int64_t samples = 64) {
    try {
      run(config, path, "auto", 7, samples, std::move(allow));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string text = message(small_config({"optimizer.lr=0.5", "train.epochs=9"}));
  CHECK(text.find("optimizer.lr: 0.003 -> 0.5") != std::string::npos);
  CHECK(text.find("train.epochs: 3 -> 9") != std::string::npos);
  CHECK(message(small_config({"train.epochs=9"}), {"optimizer.lr"}).find("train.epochs: 3 -> 9") != std::string::npos);
  CHECK(message(small_config(), {}, 65).find("stripes 64 1 -> stripes 65 1") != std::string::npos);
  CHECK(message(small_config({"train.epochs=9"}), {"train.epochs"}).empty());
  CHECK(message(small_config({"train.epochs=9", "threads=1", "train.keep_last=5"})).empty());  // these change no result
}

TEST_CASE("what an allowed change does to the learning rate is said") {
  const TemporaryFolder folder;
  run(small_config(), folder.path() + "/run", "", 5);
  std::string text;
  try {
    run(small_config({"optimizer.lr=0.006"}), folder.path() + "/run", "auto");
  } catch (const ConfigError& error) {
    text = error.what();
  }
  CHECK(text.find("the learning rate at step 5 goes from 0.00") != std::string::npos);
}

TEST_CASE("going back to an earlier checkpoint takes that way again, also to before a best that is gone") {
  const Config config =
      small_config({"train.checkpoint_every_steps=1", "train.eval_every_steps=7", "train.keep_last=20"});
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/run";
  run(config, path);
  const RunFiles expected = files_of(path);
  const std::map<std::int64_t, int> rows = count_train_rows(path);
  CHECK(run(config, "", path + "/checkpoints/step-000010").status == "done");
  CHECK(files_of(path) == expected);
  CHECK(count_train_rows(path) == rows);
  std::filesystem::remove_all(path +
                              "/checkpoints/step-000007");  // the best of step 10, as if a later one had replaced it
  CHECK(run(config, "", path + "/checkpoints/step-000010").status == "done");
  CHECK(files_of(path) == expected);
}

TEST_CASE("a run that failed at its very end is not finished: the resume ends it") {
  const Config config = small_config({"train.epochs=1"});
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/run";
  {
    Trainer trainer(config, small_experiment(config), {.out = path});
    trainer.on_eval = [](const EvalInfo& eval) {
      if (eval.split == "test") throw std::runtime_error("the application's own");
    };
    CHECK_THROWS_AS(trainer.run(), std::runtime_error);
    CHECK(read_metrics(path + "/metrics.jsonl").back().json().find("status")->as_text() == "failed");
    CHECK_THROWS_AS(trainer.run(), ValueError);  // a trainer runs once
  }
  const TrainResult result = run(config, path, "auto");
  CHECK_FALSE(result.already_done);
  REQUIRE(result.test);
  CHECK(result.test->count == 17);
  CHECK(run(config, path, "auto").already_done);
}

TEST_CASE("a model with more classes than the data is evaluated over all of them") {
  const Config config = small_config({"model.num_classes=9", "train.epochs=40"});
  const TemporaryFolder folder;
  CHECK(*run(config, folder.path() + "/run", "", -1, 256).best_top1 > 60);
  Experiment experiment = small_experiment(config);
  std::vector<Prediction> predictions;
  evaluate(*experiment.model, experiment.val, experiment.preprocessing, {}, &predictions);
  predictions[0].predicted = 8;  // a class that the data set does not have
  write_predictions(folder.path() + "/eval", *experiment.val, predictions);
  CHECK(read_bytes(folder.path() + "/eval/confusion.csv").find(",class 8") != std::string::npos);
}

TEST_CASE("a new run does not write into an old run's folder") {
  const TemporaryFolder folder;
  run(small_config(), folder.path() + "/run", "", 1);
  CHECK_THROWS_AS(run(small_config(), folder.path() + "/run"), ConfigError);
}

TEST_CASE("probes log every layer from before the first step, and x / c has J_S = N / c") {
  const TemporaryFolder folder;
  run(small_config({"attention.phi=x", "attention.scale=2", "probe.norms=true", "train.epochs=1"}),
      folder.path() + "/run");
  std::int64_t rows = 0;
  for (const MetricsRow& row : read_metrics(folder.path() + "/run/metrics.jsonl")) {
    if (row.event() != "norms") continue;
    if (rows == 0) CHECK(row.step() == 0);
    ++rows;
    CHECK(row.number("jacobian_s") == doctest::Approx(2.5));  // 5 tokens
    CHECK(row.number("attention") > 0);
    CHECK(row.number("attention_min") <= row.number("attention"));
    CHECK(row.number("attention_max") >= row.number("attention"));
    CHECK(row.number("jacobian_q") > 0);
    CHECK(row.number("jacobian_k") > 0);
  }
  CHECK(rows == 4);  // two layers, at step 0 and after the epoch
}

TEST_CASE("without a folder nothing is written, and two runs in two threads are two runs") {
  const Config config = small_config({"train.epochs=1"});
  const auto final_bytes = [&] {
    Trainer trainer(config, small_experiment(config), {});
    trainer.run();
    std::string bytes;
    for (const auto& [name, tensor] : trainer.model().state()) {
      const std::vector<float> values = tensor.to_vector<float>();
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    return bytes;
  };
  const std::string expected = final_bytes();
  std::string results[2];
  std::thread first([&] { results[0] = final_bytes(); }), second([&] { results[1] = final_bytes(); });
  first.join();
  second.join();
  CHECK(results[0] == expected);
  CHECK(results[1] == expected);
}

TEST_CASE("two runs at once, each with its folder, workers and saves, write what one alone writes") {
  const Config config = small_config(
      with(kAllOn, {"train.epochs=2", "data.workers=2", "train.checkpoint_every_steps=1", "probe.norms=true"}));
  const TemporaryFolder folder;
  const std::string alone = folder.path() + "/alone", names[2] = {folder.path() + "/a", folder.path() + "/b"};
  run(config, alone);
  std::string failures[2];
  const auto train_in = [&](int i) {
    try {
      run(config, names[i], "", 5);
      run(config, names[i], "auto");
    } catch (const std::exception& error) {
      failures[i] = error.what();
    }
  };
  std::thread first(train_in, 0), second(train_in, 1);
  first.join();
  second.join();
  for (const int i : {0, 1}) {
    CHECK(failures[i].empty());
    CHECK(files_of(names[i]) == files_of(alone));
    CHECK(count_train_rows(names[i]) == count_train_rows(alone));
  }
}
