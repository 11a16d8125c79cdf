// A stop that comes at a bad moment (inside a validation, a probe, the look at the test samples), and saves that fail.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <mutex>

#include "apps/training/run_summary.h"
#include "apps/training/trainer.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/log.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kRun = {"train.ema_decay=0.9",      "train.accumulate=2", "model.drop_path=0.2",
                                       "augment.mixup=0.8",        "probe.norms=true",   "probe.every_steps=3",
                                       "train.eval_every_steps=2", "train.epochs=2",     "train.keep_last=1"};

Config config_with(std::vector<std::string> more = {}) {
  more.insert(more.begin(), kRun.begin(), kRun.end());
  return small_config(more);
}

// Stripes that tell when one of them is taken.
class TellingDataset : public StripeDataset {
 public:
  TellingDataset(std::int64_t size, std::uint64_t seed, std::function<void(std::int64_t)> taken)
      : StripeDataset(size, 5, seed), taken_(std::move(taken)) {}
  Sample get(std::int64_t index, Generator& generator) const override {
    taken_(index);
    return StripeDataset::get(index, generator);
  }

 private:
  std::function<void(std::int64_t)> taken_;
};

// The rows without what a clock says, and without starts and ends.
std::vector<std::string> results_of(const std::string& folder) {
  std::vector<std::string> rows;
  for (const MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    if (row.event() == "start" || row.event() == "end") continue;
    JsonValue kept = row.json();
    std::erase_if(kept.members(), [](const JsonValue::Member& member) {
      return member.first == "samples_per_s" || member.first == "data_wait";
    });
    rows.push_back(kept.dump());
  }
  return rows;
}

void check_same_run(const std::string& run, const std::string& whole) {
  for (const char* file : {"model.safetensors", "state.safetensors"}) {
    for (const char* link : {"latest", "best"}) {
      const std::string path = std::string("/checkpoints/") + link + "/" + file;
      CHECK(read_file(run + path) == read_file(whole + path));
    }
  }
  CHECK(results_of(run) == results_of(whole));
  CHECK(read_file(run + "/norms.csv") == read_file(whole + "/norms.csv"));
  CHECK(RunFolder(run).best_step() == RunFolder(whole).best_step());
}

std::string last_status(const std::string& folder) {
  return read_metrics(folder + "/metrics.jsonl").back().json().find("status")->as_text();
}

std::int64_t count_rows(const std::string& folder, const std::string& event, std::int64_t step) {
  std::int64_t count = 0;
  for (const MetricsRow& row : read_metrics(folder + "/metrics.jsonl"))
    count += row.event() == event && row.step() == step;
  return count;
}

}  // namespace

TEST_CASE("a stop inside a validation gives it up; the resume begins with it, and no row tells that there was a stop") {
  const TemporaryFolder folder;
  for (const char* weights : {"eval.weights=raw", "eval.weights=ema"}) {
    const Config config = config_with({weights});
    const std::string whole = folder / (std::string("whole-") + weights),
                      cut = folder / (std::string("cut-") + weights);
    Trainer(config, small_experiment(config), {.out = whole}).run();
    // Validations are behind steps 2, 4, 6 and 8, of 23 samples in batches of 10: in each a stop at the first and at
    // the last sample, the later ones of runs that go on from a stopped one.
    for (int stopped = 0; stopped < 8; ++stopped) {
      Experiment experiment = small_experiment(config);
      std::stop_source stop;
      const std::int64_t at = stopped % 2 == 0 ? 0 : 22;
      std::int64_t validations = 0;
      experiment.val = std::make_shared<TellingDataset>(23, 2, [&](std::int64_t index) {
        validations += index == 0;
        if (index == at && validations == (stopped > 0 && at == 0 ? 2 : 1)) stop.request_stop();
      });
      Trainer trainer(config, std::move(experiment), {.out = cut, .resume = "auto"});
      const TrainResult result = trainer.run(stop.get_token());
      CHECK(result.status == "stopped");
      CHECK(last_status(cut) == "stopped");
      CHECK(result.step == 2 * (1 + stopped / 2));
      CHECK(count_rows(cut, "eval", result.step) == 0);
    }
    CHECK(Trainer(config, small_experiment(config), {.out = cut, .resume = "auto"}).run().status == "done");
    check_same_run(cut, whole);
  }
}

TEST_CASE("a stop inside a probe gives it up; the resume begins with it") {
  const TemporaryFolder folder;
  const Config config = config_with();
  Trainer(config, small_experiment(config), {.out = folder / "whole"}).run();
  // Behind step 6 come a validation and a probe: a stop at its end leaves the probe alone to be done.
  {
    std::stop_source stop;
    Trainer trainer(config, small_experiment(config), {.out = folder / "cut"});
    trainer.on_eval = [&](const EvalInfo& eval) {
      if (eval.step == 6) stop.request_stop();
    };
    CHECK(trainer.run(stop.get_token()).step == 6);
  }
  CHECK(count_rows(folder / "cut", "eval", 6) == 1);
  CHECK(count_rows(folder / "cut", "norms", 6) == 0);
  // Stopped again before it is done: the validation is not made twice.
  std::stop_source at_once;
  at_once.request_stop();
  CHECK(Trainer(config, small_experiment(config), {.out = folder / "cut", .resume = "auto"})
            .run(at_once.get_token())
            .step == 6);
  CHECK(count_rows(folder / "cut", "norms", 6) == 0);
  Trainer(config, small_experiment(config), {.out = folder / "cut", .resume = "auto"}).run();
  check_same_run(folder / "cut", folder / "whole");
}

TEST_CASE("a kill behind a resumed validation makes it again, and its row is there once") {
  const TemporaryFolder folder;
  const Config config = config_with({"train.checkpoint_every_steps=0"});
  Trainer(config, small_experiment(config), {.out = folder / "whole"}).run();
  for (const std::int64_t stopped : {1, 2, 3}) {  // validations that are no best are not saved by the resume
    const std::string cut = folder / ("cut-" + std::to_string(stopped));
    std::stop_source stop;
    Experiment experiment = small_experiment(config);
    std::int64_t validations = 0;
    experiment.val = std::make_shared<TellingDataset>(23, 2, [&](std::int64_t index) {
      validations += index == 0;
      if (validations == stopped) stop.request_stop();
    });
    Trainer(config, std::move(experiment), {.out = cut}).run(stop.get_token());
    {
      Trainer trainer(config, small_experiment(config), {.out = cut, .resume = "auto"});
      trainer.on_step = [](const StepInfo&) { throw std::runtime_error("as a kill: nothing is saved"); };
      CHECK_THROWS_AS(trainer.run(), std::runtime_error);
    }
    CHECK(count_rows(cut, "eval", 2 * stopped) == 1);
    Trainer(config, small_experiment(config), {.out = cut, .resume = "auto"}).run();
    check_same_run(cut, folder / "whole");
  }
}

TEST_CASE("a stop inside the look at the test samples: the run is stopped, and the resume takes the look") {
  const TemporaryFolder folder;
  for (const char* last : {"eval.test_last=false", "eval.test_last=true"}) {
    const Config config = config_with({last});
    const std::string whole = folder / (std::string("whole-") + last), cut = folder / (std::string("cut-") + last);
    const TrainResult expected = Trainer(config, small_experiment(config), {.out = whole}).run();
    std::stop_source stop;
    Experiment experiment = small_experiment(config);
    experiment.test = std::make_shared<TellingDataset>(17, 3, [&](std::int64_t index) {
      if (index == 5) stop.request_stop();
    });
    const TrainResult stopped = Trainer(config, std::move(experiment), {.out = cut}).run(stop.get_token());
    CHECK(stopped.status == "stopped");
    CHECK_FALSE(stopped.test);
    const TrainResult result = Trainer(config, small_experiment(config), {.out = cut, .resume = "auto"}).run();
    CHECK(result.status == "done");
    CHECK_FALSE(result.already_done);
    REQUIRE(result.test);
    CHECK(result.test->top1 == expected.test->top1);
    check_same_run(cut, whole);
  }
}

TEST_CASE("a stop before the first step leaves a folder that a resume begins anew") {
  const TemporaryFolder folder;
  const Config config = config_with();
  std::stop_source stop;
  stop.request_stop();
  const TrainResult result = Trainer(config, small_experiment(config), {.out = folder / "run"}).run(stop.get_token());
  CHECK(result.status == "stopped");
  CHECK(result.step == 0);
  CHECK(RunFolder(folder / "run").checkpoint_steps().empty());
  Trainer(config, small_experiment(config), {.out = folder / "run", .resume = "auto"}).run();
  Trainer(config, small_experiment(config), {.out = folder / "whole"}).run();
  check_same_run(folder / "run", folder / "whole");
}

namespace {

// What the library says to its log while `run` runs.
std::vector<std::string> messages_of(const std::function<void()>& run) {
  std::vector<std::string> messages;
  std::mutex mutex;
  set_log_sink([&](LogLevel level, std::string_view message) {
    const std::lock_guard lock(mutex);
    if (level >= LogLevel::warning) messages.emplace_back(message);
  });
  run();
  set_log_sink({});
  return messages;
}

// Runs with the checkpoints' folder out of the way from the end of step `from` to that of step `to`.
void run_without_folder(const Config& config, const std::string& out, std::int64_t from, std::int64_t to) {
  Trainer trainer(config, small_experiment(config), {.out = out});
  trainer.on_step = [&](const StepInfo& step) {
    if (step.step == from) fs::rename(out + "/checkpoints", out + "/away");
    if (step.step == to) fs::rename(out + "/away", out + "/checkpoints");
  };
  trainer.run();
}

}  // namespace

TEST_CASE("a save that fails ends nothing: it is said, the next one is tried, and the end is no success") {
  const TemporaryFolder folder;
  const Config config = config_with({"train.checkpoint_every_steps=1"});
  Trainer(config, small_experiment(config), {.out = folder / "whole"}).run();
  const std::vector<std::string> messages = messages_of([&] {
    CHECK_THROWS_WITH_AS(run_without_folder(config, folder / "run", 3, 5),
                         Contains("the run is done and its last checkpoint is saved, but 2 before it could not be"),
                         IoError);
  });
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].find("the checkpoint of step 3 could not be saved") != std::string::npos);
  CHECK(messages[0].find("checkpoints/.unfinished-step-000003: No such file") != std::string::npos);
  CHECK(read_file(folder / "run/checkpoints/latest/model.safetensors") ==
        read_file(folder / "whole/checkpoints/latest/model.safetensors"));
  CHECK(last_status(folder / "run") == "done");
  const TrainResult again = Trainer(config, small_experiment(config), {.out = folder / "run", .resume = "auto"}).run();
  CHECK(again.already_done);
}

TEST_CASE("where the last save fails the run failed, the old checkpoint stays, and a resume ends it") {
  const TemporaryFolder folder;
  const Config config = config_with({"train.checkpoint_every_steps=1", "train.eval_every_steps=0"});
  Trainer(config, small_experiment(config), {.out = folder / "whole"}).run();
  const std::vector<std::string> messages = messages_of([&] {
    CHECK_THROWS_WITH_AS(run_without_folder(config, folder / "run", 7, -1),
                         Contains("the last checkpoint, of step 8, could not be saved"), IoError);
  });
  CHECK(messages.size() == 2);  // of steps 7 and 8
  CHECK(last_status(folder / "run") == "failed");
  fs::rename(folder / "run/away", folder / "run/checkpoints");
  CHECK(RunFolder(folder / "run").checkpoint_steps().back() == 6);
  Trainer(config, small_experiment(config), {.out = folder / "run", .resume = "auto"}).run();
  check_same_run(folder / "run", folder / "whole");
}

TEST_CASE("a best that could not be saved is none: the one before it stays") {
  const TemporaryFolder folder;
  // Of the three validations each is better than the one before, as a best is chosen; the middle one's save fails.
  const Config config = config_with({"train.checkpoint_every_steps=0", "train.epochs=40", "train.keep_last=50",
                                     "optimizer.lr=0.01", "train.eval_every_steps=20"});
  std::vector<std::int64_t> bests;
  const std::string out = folder / "run";
  Trainer trainer(config, small_experiment(config), {.out = out});
  bool away = false;
  std::int64_t lost = 0;
  trainer.on_eval = [&](const EvalInfo& eval) {
    if (away) fs::rename(out + "/away", out + "/checkpoints");
    away = false;
    if (!eval.best || eval.split != "val") return;
    bests.push_back(eval.step);
    if (bests.size() != 2) return;
    lost = eval.step;
    fs::rename(out + "/checkpoints", out + "/away");
    away = true;
  };
  const auto messages = messages_of([&] { CHECK_THROWS_AS(trainer.run(), IoError); });
  CHECK(messages.size() == 1);
  REQUIRE(lost > 0);
  const std::vector<std::int64_t> steps = RunFolder(out).checkpoint_steps();
  CHECK(std::find(steps.begin(), steps.end(), lost) == steps.end());
  REQUIRE(RunFolder(out).best_step());
  CHECK(RunFolder(out).best_step() != lost);
  CHECK(read_checkpoint_info(out + "/checkpoints/latest").state.best_step == *RunFolder(out).best_step());
}

TEST_CASE("a stop whose save fails is no stop that can go on: IoError") {
  const TemporaryFolder folder;
  const Config config = config_with();
  std::stop_source stop;
  const std::string out = folder / "run";
  Trainer trainer(config, small_experiment(config), {.out = out});
  trainer.on_step = [&](const StepInfo& step) {
    if (step.step != 3) return;
    fs::rename(out + "/checkpoints", out + "/away");
    stop.request_stop();
  };
  messages_of(
      [&] { CHECK_THROWS_WITH_AS(trainer.run(stop.get_token()), Contains("goes on from the start"), IoError); });
}

TEST_CASE("--overfit: a run that got all right is finished, also where a stop or a resume comes behind it") {
  const TemporaryFolder folder;
  const Config config = small_config(
      {"train.epochs=60", "optimizer.lr=0.01", "train.eval_every_steps=5", "probe.norms=true", "probe.every_steps=5"});
  const auto run = [&](const std::string& out, std::stop_source stop = {}) {
    Trainer trainer(config, small_experiment(config, 10), {.out = out, .resume = "auto", .overfit = true});
    trainer.on_eval = [&](const EvalInfo& eval) {
      if (eval.result.top1 == 100) stop.request_stop();  // which cuts the probe off
    };
    return trainer.run(stop.get_token());
  };
  const TrainResult stopped = run(folder / "run");
  REQUIRE(stopped.best_top1 == 100);
  REQUIRE(stopped.step < 60);
  CHECK(stopped.status == "stopped");
  const TrainResult done = run(folder / "run");
  CHECK(done.status == "done");
  CHECK(done.step == stopped.step);
  CHECK(count_rows(folder / "run", "norms", done.step) == 2);
  CHECK_FALSE(done.already_done);
  CHECK(run(folder / "run").already_done);
}

TEST_CASE("a best whose link could not be made is linked by the next save, and never cleared away") {
  const TemporaryFolder folder;
  // Of these evaluations the first is the best: the learning rate changes nothing.
  const Config config =
      small_config({"train.max_steps=8", "train.epochs=null", "optimizer.lr=1e-12", "train.eval_every_steps=4",
                    "train.checkpoint_every_steps=1", "train.keep_last=1"});
  const std::string out = folder / "run", in_the_way = out + "/checkpoints/best";
  Trainer trainer(config, small_experiment(config), {.out = out});
  trainer.on_step = [&](const StepInfo& step) {
    if (step.step == 4) fs::create_directories(in_the_way + "/x");
    if (step.step == 5) fs::remove_all(in_the_way);
  };
  const auto messages = messages_of([&] { CHECK(trainer.run().status == "done"); });
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].find("of step 4 is saved, but what follows a save is not done") != std::string::npos);
  CHECK(RunFolder(out).best_step() == 4);
  CHECK(RunFolder(out).checkpoint_steps() == std::vector<std::int64_t>{4, 8});
  CHECK(last_status(out) == "done");
}

TEST_CASE("a best whose link can't be made to the end is no success, and nothing is cleared away") {
  const TemporaryFolder folder;
  const Config config = small_config({"train.epochs=1", "train.checkpoint_every_steps=1", "train.keep_last=1"});
  const std::string out = folder / "run", in_the_way = out + "/checkpoints/best";
  fs::create_directories(in_the_way + "/x");
  messages_of([&] {
    CHECK_THROWS_WITH_AS(Trainer(config, small_experiment(config), {.out = out, .resume = "auto"}).run(),
                         Contains("the run is done and saved, but what follows its last save is not: "), IoError);
  });
  CHECK(last_status(out) == "done");
  fs::remove_all(in_the_way);
}

TEST_CASE("a summary has the best that the run has, not one that was lost with its save") {
  const TemporaryFolder folder;
  const Config config =
      small_config({"train.max_steps=8", "train.epochs=null", "optimizer.lr=1e-12", "train.eval_every_steps=4"});
  const std::string out = folder / "run";
  Trainer trainer(config, small_experiment(config), {.out = out});
  trainer.on_step = [&](const StepInfo& step) {
    if (step.step == 4) fs::rename(out + "/checkpoints", out + "/away");
    if (step.step == 5) fs::rename(out + "/away", out + "/checkpoints");
  };
  messages_of([&] { CHECK_THROWS_AS(trainer.run(), IoError); });
  REQUIRE(RunFolder(out).best_step() == 8);
  CHECK(read_run(out).best_step == 8);
}

TEST_CASE("a finished run that was made longer, and is taken back to its end, looks at the test samples again") {
  const TemporaryFolder folder;
  const Config config = small_config({"train.epochs=1", "train.keep_last=50"});
  const Config longer = small_config({"train.epochs=2", "train.keep_last=50"});
  const std::string out = folder / "run";
  const TrainResult first = Trainer(config, small_experiment(config), {.out = out}).run();
  REQUIRE(first.test);
  {
    std::stop_source stop;
    Trainer trainer(longer, small_experiment(config), {.out = out, .resume = "auto", .allow_change = {"train.epochs"}});
    trainer.on_step = [&](const StepInfo& step) {
      if (step.step == first.step + 2) stop.request_stop();
    };
    CHECK(trainer.run(stop.get_token()).status == "stopped");
  }
  const std::string end = RunFolder(out).checkpoint_path(first.step);
  const TrainResult back = Trainer(config, small_experiment(config), {.out = out, .resume = end}).run();
  CHECK(back.status == "done");
  REQUIRE(back.test);
  CHECK(back.test->top1 == first.test->top1);
  CHECK(RunFolder(out).checkpoint_steps().back() == first.step);
}
