// What a run says at its start, to people and in its start row: enough to do it again, and to know where it was done.
#include <doctest/doctest.h>

#include <algorithm>

#include "apps/training/host.h"
#include "apps/training/trainer.h"
#include "engine/version.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

std::string text_of(const MetricsRow& row, const char* key) {
  const JsonValue* value = row.json().find(key);
  return value == nullptr ? "(none)" : value->as_text();
}

}  // namespace

TEST_CASE("the settings that are not defaults are told in one line, and no others") {
  CHECK(changed_settings(Config()).empty());
  Config config;
  config.set("optimizer.lr=0.5");
  config.set("attention.phi=x3");
  config.set("train.batch_size=128");  // the default, said aloud
  config.set("model.patch_size=2x4");
  CHECK(changed_settings(config) == "model.patch_size=[2,4], attention.phi=x3, optimizer.lr=0.5");
}

TEST_CASE("start row and start report name program, machine, command, settings and the step's samples") {
  const TemporaryFolder folder;
  const Config config = small_config({"train.epochs=1", "train.accumulate=2", "schedule.warmup_steps=1"});
  std::vector<std::string> lines;
  TrainerOptions options{.out = folder / "run", .command = "vit_train --config mine"};
  options.report = [&](std::string_view line) { lines.emplace_back(line); };
  Trainer(config, small_experiment(config), options).run();
  const MetricsRow row = read_metrics(folder / "run/metrics.jsonl").front();
  REQUIRE(row.event() == "start");
  CHECK(text_of(row, "version") == version());
  CHECK(text_of(row, "git") == git_id());
  CHECK(text_of(row, "compiler") == compiler_text());
  CHECK(text_of(row, "host") == host_info().name);
  CHECK(text_of(row, "cpu") == host_info().cpu);
  CHECK(row.number("memory_mib") > 0);
  CHECK(text_of(row, "time").size() == std::string("2026-01-31T12:00:00Z").size());
  CHECK(text_of(row, "command") == "vit_train --config mine");
  CHECK(text_of(row, "settings") == changed_settings(config));
  CHECK(row.number("batch_size") == 20);
  CHECK(row.number("accumulate") == 2);
  CHECK(row.number("lr") == 0.003);
  const auto said = [&](const std::string& part) {
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) { return line.find(part) == 0; });
  };
  CHECK(said(std::string("polygrad   ") + version() + " (" + git_id() + "), " + compiler_text()));
  CHECK(said("command    vit_train --config mine"));
  CHECK(said("settings   " + changed_settings(config)));
  CHECK(said("machine    cpu (" + host_info().cpu));
  CHECK(
      said("schedule   4 steps (4 an epoch) of 20 samples (2 x 10), lr 0.003 by cosine after 1 steps of warm-up from "
           "1e-06; chance level: loss 1.6094"));
}

TEST_CASE("the start report says where a warm-up begins, whatever the schedule") {
  const Config config = small_config({"train.epochs=1", "schedule.name=one_cycle", "schedule.warmup_steps=2"});
  std::vector<std::string> lines;
  TrainerOptions options;
  options.report = [&](std::string_view line) { lines.emplace_back(line); };
  Trainer(config, small_experiment(config), options).run();
  // A twenty-fifth of the peak (schedule.div_factor); schedule.warmup_lr is not one_cycle's.
  CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("lr 0.003 by one_cycle after 2 steps of warm-up from 0.00012;") != std::string::npos;
  }));
}
