// Runs on sequences: exact resume, results that do not depend on threads or workers, every sample evaluated, the
// reference's habits named, the chance level and who stays there.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "apps/training/dry_run.h"
#include "apps/training/metrics_log.h"
#include "apps/training/trainer.h"
#include "data/listops_generator.h"
#include "data/text_pairs.h"
#include "data/token_table.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/parallel.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// Sequences of 3 to 19 tokens; the class is what the first one says.
class Words : public TokenTable {
 public:
  Words(int size, std::uint64_t seed, bool learnable = true) : TokenTable("words", {"a", "b", "c"}, 1) {
    for (int i = 0; i < size; ++i) {
      Generator generator(derive_seed(seed, static_cast<std::uint64_t>(i)));
      std::string ids;
      for (std::int64_t length = generator.integer(3, 20); length > 0; --length) {
        ids += static_cast<char>(generator.integer(0, 9));
      }
      const int label = ids[0] % 3;
      add(ids, 100, learnable ? label : generator.integer(0, 3));
    }
  }
  std::string describe(std::int64_t index) const override { return "word " + std::to_string(index); }
};

Config words_config(const std::vector<std::string>& extra = {}) {
  Config config;
  for (const char* assignment :
       {"model.name=lra_listops", "data.name=lra_listops", "model.embed_dim=16", "model.dropout=0.1",
        "attention.phi=x3", "attention.scale=14", "train.batch_size=10", "train.epochs=2", "train.log_every_steps=1",
        "optimizer.lr=0.003", "optimizer.weight_decay=0", "schedule.name=constant"}) {
    config.set(assignment);
  }
  for (const std::string& assignment : extra) config.set(assignment);
  return config;
}

Experiment words_experiment(const Config& config, bool learnable = true, int samples = 64) {
  Experiment experiment;
  experiment.train = std::make_shared<Words>(samples, 1, learnable);
  experiment.val = std::make_shared<Words>(23, 2, learnable);
  experiment.test = std::make_shared<Words>(17, 3, learnable);
  experiment.preprocessing.towers = 1;
  experiment.preprocessing.length = 64;
  experiment.preprocessing.vocabulary = "words";
  experiment.model = build_model(config, 3, experiment.preprocessing);
  experiment.mix = {.classes = 3};
  experiment.data_fingerprint = experiment.train->fingerprint();
  return experiment;
}

std::string weights_of(const std::string& folder) {
  return read_file(folder + "/checkpoints/latest/model.safetensors") +
         read_file(folder + "/checkpoints/latest/state.safetensors");
}

std::string run_whole(const std::vector<std::string>& extra) {
  const TemporaryFolder folder;
  const Config config = words_config(extra);
  Trainer trainer(config, words_experiment(config), {.out = folder / "run"});
  trainer.run();
  return weights_of(folder / "run");
}

std::vector<MetricsRow> rows_of(const std::string& folder, const std::string& event) {
  std::vector<MetricsRow> rows;
  for (MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    if (row.event() == event) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

TEST_CASE("a run on sequences: resumed to the last byte, the same for any threads and workers, buckets too") {
  for (const std::vector<std::string>& extra :
       {std::vector<std::string>{"attention.dropout=0.1"}, std::vector<std::string>{"data.bucket=3"}}) {
    CAPTURE(extra[0]);
    const std::string whole = run_whole(extra);
    std::vector<std::string> workers = extra;
    workers.push_back("data.workers=3");
    CHECK(run_whole(workers) == whole);
    {
      const NumThreadsGuard one(1);
      CHECK(run_whole(extra) == whole);
    }
    const TemporaryFolder folder;
    const Config config = words_config(extra);
    for (const int stop_after : {3, 9, -1}) {
      Trainer trainer(config, words_experiment(config), {.out = folder / "run", .resume = "auto"});
      std::stop_source stop;
      trainer.on_step = [&](const StepInfo& info) {
        if (info.step == stop_after) stop.request_stop();
      };
      trainer.run(stop.get_token());
    }
    CHECK(weights_of(folder / "run") == whole);
  }
  CHECK(run_whole({}) != run_whole({"data.bucket=3"}));
}

TEST_CASE("micro-batches of sequences give the step of the whole batch") {
  const auto first_row = [](const std::vector<std::string>& extra) {
    const TemporaryFolder folder;
    const Config config = words_config(extra);
    Trainer(config, words_experiment(config), {.out = folder / "run"}).run();
    return rows_of(folder / "run", "train").at(0);
  };
  const MetricsRow whole = first_row({"train.batch_size=20", "train.max_steps=1"});
  const MetricsRow parts = first_row({"train.batch_size=5", "train.accumulate=4", "train.max_steps=1"});
  CHECK(parts.number("loss") == doctest::Approx(whole.number("loss")).epsilon(1e-6));
  CHECK(parts.number("grad_norm") == doctest::Approx(whole.number("grad_norm")).epsilon(1e-5));
}

TEST_CASE("a learnable task is learned") {
  const Config config = words_config({"train.epochs=40", "model.dropout=0", "train.eval_every_steps=100"});
  Trainer trainer(config, words_experiment(config, true, 300), {.out = ""});
  CHECK(trainer.run().best_top1.value() > 95);
}

TEST_CASE("an evaluation counts every sample, or leaves the tail out where the reference's habit asks for it") {
  const Config config = words_config();
  const Experiment parts = words_experiment(config);
  std::vector<Prediction> predictions;
  EvalOptions options{.batch_size = 10};
  const EvalResult whole = evaluate(*parts.model, parts.val, parts.preprocessing, options, &predictions);
  CHECK(whole.count == 23);
  CHECK(predictions.size() == 23);
  // The same whatever the batches, so whatever is padded.
  for (const std::int64_t batch : {1, 7, 23}) {
    options.batch_size = batch;
    const EvalResult other = evaluate(*parts.model, parts.val, parts.preprocessing, options);
    CHECK(other.loss == doctest::Approx(whole.loss).epsilon(1e-6));
    CHECK(other.top1 == whole.top1);
  }
  options = {.batch_size = 10, .drop_last = true};
  CHECK(evaluate(*parts.model, parts.val, parts.preprocessing, options).count == 20);
  options.batch_size = 100;  // no whole batch: nothing can be left out
  CHECK(evaluate(*parts.model, parts.val, parts.preprocessing, options).count == 23);
}

TEST_CASE("the last weights are tested beside the best, each with its step") {
  const TemporaryFolder folder;
  // The learning rate grows out of hand, so that the best weights are not the last.
  const Config config = words_config({"eval.test_last=true", "optimizer.lr=0.3", "train.eval_every_steps=1"});
  Trainer trainer(config, words_experiment(config), {.out = folder / "run"});
  const TrainResult result = trainer.run();
  std::vector<MetricsRow> tests;
  for (const MetricsRow& row : rows_of(folder / "run", "eval")) {
    if (row.json().find("split")->as_text() == "test") tests.push_back(row);
  }
  REQUIRE(result.best_step != result.step);
  REQUIRE(tests.size() == 2);
  CHECK(tests[0].step() == result.step);
  CHECK(tests[0].json().find("weights")->as_text() == "last");
  CHECK(tests[1].step() == result.best_step);
  CHECK(tests[1].number("top1") == result.test->top1);
}

TEST_CASE("the chance level is the most frequent class; a run that stays there is told once") {
  CHECK(chance_level(Words(200, 1)) > 33);
  const Config config =
      words_config({"train.epochs=200", "optimizer.lr=1e-9", "train.eval_every_steps=200", "model.dropout=0"});
  std::vector<std::string> lines;
  TrainerOptions options;
  options.report = [&](std::string_view line) { lines.emplace_back(line); };
  Trainer trainer(config, words_experiment(config, false), options);
  trainer.run();
  const auto count = [&](const std::string& part) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  CHECK(count("warning    after 600 steps top-1 is") == 1);
  CHECK(count("warning    after") == 1);  // a third of the 1400 steps, at the next evaluation
  CHECK(count("(chance ") == 7);
}

TEST_CASE("the presets: the default has none of the reference's habits, the reference has its own, each named") {
  const std::string folder = std::string(std::getenv("POLYGRAD_SOURCE_DIR")) + "/apps/experiments/";
  const std::pair<const char*, std::size_t> tasks[] = {
      {"listops", 5}, {"text", 6}, {"retrieval", 5}, {"image", 5}, {"pathfinder", 5}};
  for (const auto& [task, habits] : tasks) {
    CAPTURE(task);
    const Config plain = Config::from_file(folder + "lra_" + task + ".json");
    const Config reference = Config::from_file(folder + "lra_" + task + "_reference.json");
    CHECK(reference_habits(plain).empty());
    CHECK(reference_habits(reference).size() == habits);
    CHECK(plain.number("attention.dropout") == 0);
    CHECK(plain.number("model.dropout") == 0.1);
    // They differ in nothing that is not such a habit, but for how often they evaluate.
    const std::vector<std::string> allowed = {
        "attention.dropout", "data.mask_zero_pixels",   "data.text_margin",        "data.dev",
        "eval.drop_last",    "schedule.cycle_momentum", "model.pool_over_padding", "train.eval_every_steps"};
    CHECK(describe(without_allowed(config_differences(plain, reference), allowed)).empty());
  }
}

TEST_CASE("hyper-parameters of the tasks are the reference's") {
  const std::string folder = std::string(std::getenv("POLYGRAD_SOURCE_DIR")) + "/apps/experiments/lra_";
  const std::tuple<const char*, int, int, int> tasks[] = {{"listops", 32, 1000, 5000},
                                                          {"text", 32, 8000, 20000},
                                                          {"retrieval", 32, 800, 30000},
                                                          {"image", 256, 175, 35000},
                                                          {"pathfinder", 256, 312, 62400}};
  for (const auto& [task, batch, warmup, steps] : tasks) {
    CAPTURE(task);
    const Config config = Config::from_file(folder + task + ".json");
    CHECK(config.integer("train.batch_size") == batch);
    CHECK(config.number("optimizer.weight_decay") == 0);
    CHECK(config.number("optimizer.eps") == 1e-6);
    const Schedule schedule = build_schedule(config, 7);
    CHECK(schedule.at(0).lr == doctest::Approx(4e-6));
    CHECK(schedule.at(warmup - 1).lr == doctest::Approx(1e-4));
    CHECK(schedule.at(steps - 1).lr == doctest::Approx(4e-10));
    CHECK(run_length(config, 7).steps == steps);
  }
  // A short run stays on the curve of the long one.
  Config config = Config::from_file(folder + "listops.json");
  config.set("train.max_steps=6");
  CHECK(run_length(config, 7).steps == 6);
  const Schedule listops = build_schedule(config, 7);
  CHECK(listops.at(500).lr == doctest::Approx(5.2048e-5).epsilon(1e-4));
  CHECK(listops.at(2500).lr == doctest::Approx(6.2475e-5).epsilon(1e-4));
  // The printed table has these steps: round ones, the peak, the last.
  for (const char* row : {"\n         0         4e-06", "\n       500    5.2048e-05", "\n       999        0.0001",
                          "\n      2500   6.24752e-05", "\n      4999         4e-10"}) {
    CHECK_MESSAGE(listops.table().find(row) != std::string::npos, listops.table());
  }
}

TEST_CASE("keys that would do nothing are refused, for tokens as for images") {
  for (const char* assignment : {"augment.mixup=0.2", "augment.flip=true", "model.patch_size=4", "model.pool=token"}) {
    CAPTURE(assignment);
    CHECK_THROWS_AS(refuse_unavailable(words_config({assignment})), ConfigError);
  }
  CHECK_NOTHROW(refuse_unavailable(words_config({"augment.flip=false", "data.bucket=4", "data.text_length=99"})));
  for (const char* assignment : {"data.bucket=4", "data.text_length=99", "data.mask_zero_pixels=true",
                                 "model.pool_over_padding=true", "data.dev=test"}) {
    CAPTURE(assignment);
    Config config;
    config.set(assignment);
    CHECK_THROWS_AS(refuse_unavailable(config), ConfigError);
  }
  // And each of a task's keys at the others.
  const std::pair<const char*, std::vector<std::string>> keys[] = {
      {"data.text_margin=true", {"listops", "text", "retrieval"}},
      {"data.mask_zero_pixels=true", {"image", "pathfinder"}},
      {"data.dev=test", {"text"}},
      {"data.level=easy", {"pathfinder"}}};
  for (const auto& [assignment, tasks] : keys) {
    for (const std::string task : {"listops", "text", "retrieval", "image", "pathfinder"}) {
      CAPTURE(assignment);
      CAPTURE(task);
      Config config;
      for (const char* key : {"model.name=lra_", "data.name=lra_"}) config.set(key + task);
      config.set(assignment);
      if (std::count(tasks.begin(), tasks.end(), task) == 1) {
        CHECK_NOTHROW(refuse_unavailable(config));
      } else {
        CHECK_THROWS_WITH_AS(refuse_unavailable(config), doctest::Contains(("for the data lra_" + task).c_str()),
                             ConfigError);
      }
    }
  }
  // Tokens for a model of images, and the other way round.
  Config config = words_config({"model.name=vit_tiny", "model.num_heads=2"});
  CHECK_THROWS_WITH_AS(words_experiment(config), doctest::Contains("vit_tiny takes images"), ConfigError);
}

TEST_CASE("--dry-run on sequences: lengths, habits, one step") {
  const TemporaryFolder folder;
  write_listops(folder.path(), 50, 1);
  write_synthetic_pairs(folder.path(), 20, 1);
  for (const char* task : {"listops", "retrieval"}) {
    Config config = Config::from_file(std::string(std::getenv("POLYGRAD_SOURCE_DIR")) + "/apps/experiments/lra_" +
                                      task + "_reference.json");
    config.set("data.root=" + folder.path());
    config.set("train.batch_size=4");
    const std::string text = dry_run(config);
    CAPTURE(text);
    CHECK(text.find("unknown tokens: 0") != std::string::npos);
    CHECK(text.find("as the reference: ") != std::string::npos);
    CHECK(text.find("places filled") != std::string::npos);
    CHECK(text.find("one training step: loss") != std::string::npos);
    CHECK(text.find("(" + std::string(task[0] == 'l' ? "listops" : "bytes") + ")") != std::string::npos);
  }
}

TEST_CASE("a checkpoint of tokens keeps towers, length and vocabulary; an early version's data.dev is understood") {
  const TemporaryFolder folder;
  const Config config = words_config({"train.epochs=null", "train.max_steps=1"});
  Trainer(config, words_experiment(config), {.out = folder / "run"}).run();
  const std::string checkpoint = folder / "run/checkpoints/latest";
  const CheckpointInfo info = read_checkpoint_info(checkpoint);
  CHECK(info.preprocessing.towers == 1);
  CHECK(info.preprocessing.length == 64);
  CHECK(info.preprocessing.vocabulary == "words");
  CHECK(info.state.batches_per_epoch == 7);
  std::string state = read_file(checkpoint + "/state.json");
  const std::size_t at = state.find("\"dev\": \"holdout\"");
  REQUIRE(at != std::string::npos);
  state.replace(at, 16, "\"dev\": false");
  state.replace(state.rfind(",\n  \"hash\""), std::string::npos, "\n}\n");  // early versions wrote none
  write_file_atomically(checkpoint + "/state.json", state);
  CHECK(read_checkpoint_info(checkpoint).config.text("data.dev") == "holdout");
}
