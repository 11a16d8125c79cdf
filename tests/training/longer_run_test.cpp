// A finished run that is asked for more epochs goes on; one that is asked for the same, or something else, does not.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "apps/training/trainer.h"
#include "engine/error.h"
#include "engine/safetensors.h"
#include "models/weights.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

using Lines = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TrainResult run(const Config& config, const std::string& folder, const std::string& resume = "",
                std::vector<std::string> allow = {}, Lines* said = nullptr) {
  TrainerOptions options{.out = folder, .resume = resume, .allow_change = std::move(allow)};
  if (said) options.report = [said](std::string_view line) { said->emplace_back(line); };
  return Trainer(config, small_experiment(config), options).run();
}

std::string refusal(const Config& config, const std::string& folder, std::vector<std::string> allow = {}) {
  try {
    run(config, folder, "auto", std::move(allow));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::vector<MetricsRow> rows_of(const std::string& folder, const std::string& event, const std::string& split = "") {
  std::vector<MetricsRow> rows;
  for (MetricsRow& row : read_metrics(folder + "/metrics.jsonl")) {
    const JsonValue* its_split = row.json().find("split");
    if (row.event() == event && (split.empty() || its_split->as_text() == split)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

TEST_CASE("a finished run goes on with more epochs, its best and its rows with it") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  const Config two = small_config({"train.epochs=2"}), five = small_config({"train.epochs=5"});
  const TrainResult first = run(two, path);
  CHECK(first.step == 14);
  CHECK(run(two, path, "auto").already_done);
  CHECK(contains(refusal(five, path), "train.epochs: 2 -> 5"));
  CHECK(rows_of(path, "end").size() == 1);

  Lines said;
  const TrainResult longer = run(five, path, "auto", {"train.epochs"}, &said);
  CHECK(longer.status == "done");
  CHECK_FALSE(longer.already_done);
  CHECK(longer.step == 35);
  REQUIRE(longer.test);
  CHECK(*longer.best_top1 >= *first.best_top1);
  CHECK(std::count_if(said.begin(), said.end(), [](const std::string& line) {
          return contains(line, "changed    the learning rate at step 14 goes from 1e-05 to 0.00");
        }) == 1);
  // No step twice, none left out; a start and an end for each part; one look at the test samples, the last.
  std::vector<std::int64_t> steps;
  for (const MetricsRow& row : rows_of(path, "train")) steps.push_back(row.step());
  REQUIRE(steps.size() == 35);
  for (std::size_t i = 0; i < steps.size(); ++i) CHECK(steps[i] == static_cast<std::int64_t>(i + 1));
  const std::vector<MetricsRow> starts = rows_of(path, "start"), ends = rows_of(path, "end");
  REQUIRE(starts.size() == 2);
  CHECK(starts[1].step() == 14);
  REQUIRE(ends.size() == 2);
  CHECK(ends[0].step() == 14);
  CHECK(ends[1].step() == 35);
  CHECK(ends[1].number("seconds") >= ends[0].number("seconds"));
  REQUIRE(rows_of(path, "eval", "test").size() == 1);
  CHECK(rows_of(path, "eval", "test")[0].step() == longer.best_step);
  double best = -1;
  for (const MetricsRow& row : rows_of(path, "eval", "val")) best = std::max(best, row.number("top1"));
  CHECK(best == *longer.best_top1);
  CHECK(RunFolder(path).best_step() == longer.best_step);
  CHECK(RunFolder(path).newest_checkpoint() == path + "/checkpoints/step-000035");

  // What it is now is the five epochs.
  CHECK(run(five, path, "auto").already_done);
  CHECK(contains(refusal(two, path), "train.epochs: 5 -> 2"));
  CHECK(contains(refusal(small_config({"train.epochs=5", "model.depth=3", "schedule.name=constant"}), path),
                 "model.depth: 2 -> 3; schedule.name: \"cosine\" -> \"constant\""));
}

TEST_CASE("with a constant learning rate the longer run is the one that was long from the start") {
  const TemporaryFolder folder;
  const std::vector<std::string> keys = {"schedule.name=constant", "train.ema_decay=0.9", "model.dropout=0.1"};
  const auto config = [&](const char* epochs) {
    std::vector<std::string> all = keys;
    all.emplace_back(epochs);
    return small_config(all);
  };
  run(config("train.epochs=4"), folder / "whole");
  run(config("train.epochs=1"), folder / "parts");
  Lines said;
  run(config("train.epochs=3"), folder / "parts", "auto", {"train.epochs"}, &said);
  run(config("train.epochs=4"), folder / "parts", "auto", {"train.epochs"});
  for (const std::string& line : said) CHECK_FALSE(contains(line, "changed    "));
  for (const char* file : {"/checkpoints/latest/model.safetensors", "/checkpoints/latest/state.safetensors"}) {
    CHECK(fingerprint(load_safetensors(folder.path() + "/whole" + file)) ==
          fingerprint(load_safetensors(folder.path() + "/parts" + file)));
  }
}
