// Sweeps: what a file says, what its runs are called, the table, and what may change between two calls.
#include "apps/training/sweep.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include "apps/training/presets.h"
#include "apps/training/sweep_results.h"
#include "engine/error.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_folder.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using doctest::Contains;
using polygrad::testing::read_bytes;
using polygrad::testing::TemporaryFolder;
using polygrad::testing::write_bytes;

namespace {

Config base(const std::string& name) {
  if (name == "nothing") throw ConfigError("there is no such preset");
  return polygrad::testing::small_config();
}

SweepPlan plan_of(const std::string& text, const std::vector<std::string>& set = {}) {
  Config overrides;
  for (const std::string& assignment : set) overrides.set(assignment);
  return parse_sweep(text, "s.json", base, overrides);
}

std::vector<std::string> names_of(const SweepPlan& plan) {
  std::vector<std::string> names;
  for (const SweepRun& run : plan.runs) names.push_back(run.name);
  return names;
}

RunSummary summary(const std::string& status, double best, double loss, double seconds, std::int64_t step = 10) {
  RunSummary run;
  run.status = status;
  run.best_top1 = best;
  run.train_loss = loss;
  run.seconds = seconds;
  run.step = step;
  return run;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("runs are variants x grid x seeds: names, order, settings, configurations") {
  const SweepPlan plan = plan_of(R"({"set": {"train.epochs": 2},
      "variants": [{"name": "x³/c", "set": {"attention.phi": "x3"}}, {"name": "b x 100 ", "set": {"train.batch_size": 1}}],
      "grid": {"optimizer.lr": [1e-3, 0.5], "model.patch_size": [4, "2x4"]},
      "seeds": [0, 7]})");
  REQUIRE(plan.cells.size() == 8);
  REQUIRE(plan.runs.size() == 16);
  CHECK(plan.grid_keys == Names{"optimizer.lr", "model.patch_size"});
  CHECK(plan.runs[0].name == "x3-c_lr-0.001_patch_size-4_seed-0");
  CHECK(plan.runs[1].name == "x3-c_lr-0.001_patch_size-2x4_seed-0");
  CHECK(plan.runs[6].name == "b-x-100_lr-0.5_patch_size-4_seed-0");
  CHECK(plan.runs[8].name == "x3-c_lr-0.001_patch_size-4_seed-7");  // every cell's first seed comes first
  CHECK(plan.runs[8].cell == 0);
  CHECK(plan.cells[1].values == std::vector<JsonValue>{JsonValue::real(0.001), JsonValue::text("2x4")});
  CHECK(plan.cells[0].label == "x³/c, lr 0.001, patch_size 4");
  CHECK(run_label(plan, 8) == "x³/c, lr 0.001, patch_size 4, seed 7");
  CHECK(plan.runs[7].settings ==
        std::vector<std::pair<std::string, std::string>>{
            {"train.batch_size", "1"}, {"optimizer.lr", "0.5"}, {"model.patch_size", "\"2x4\""}, {"seed", "0"}});
  const Config& config = plan.runs[15].config;
  CHECK(config.number("optimizer.lr") == 0.5);
  CHECK(config.size("model.patch_size") == std::pair<std::int64_t, std::int64_t>(2, 4));
  CHECK(config.seed("seed") == 7);
  CHECK(config.number("train.epochs") == 2);
  CHECK(config.integer("model.depth") == 2);  // the base's
}

TEST_CASE("each part may be missing, and short names keep their section where two keys end alike") {
  CHECK(names_of(plan_of(R"({"seeds": [3, 18446744073709551615]})")) == Names{"seed-3", "seed-18446744073709551615"});
  CHECK(names_of(plan_of(R"({"variants": [{"name": "a"}]})")) == Names{"a"});
  CHECK(names_of(plan_of(R"({"grid": {"attention.phi": ["x^3", ["x", "relu"]]}})")) == Names{"phi-x-3", "phi-x-relu"});
  CHECK(names_of(plan_of(R"({"grid": {"model.dropout": [0, 0.5], "attention.dropout": [0.1]}})")) ==
        Names{"model.dropout-0_attention.dropout-0.1", "model.dropout-0.5_attention.dropout-0.1"});
  CHECK(names_of(plan_of(R"({"grid": {"attention.scale": [1, "n"], "probe.norms": [true]}})")) ==
        Names{"scale-1_norms-true", "scale-n_norms-true"});
  CHECK(names_of(plan_of(R"({"variants": [{"name": "../a b//c"},
      {"name": ".-hidden", "set": {"model.dropout": 0.5}}]})")) == Names{"a-b-c", "hidden"});
}

TEST_CASE("the command line comes last, and never touches what the sweep varies") {
  const std::string text = R"({"set": {"train.epochs": 2}, "variants": [{"name": "a", "set": {"attention.phi": "x"}}],
      "grid": {"optimizer.lr": [1, 2]}})";
  const SweepPlan plan = plan_of(text, {"train.epochs=5", "data.root=/d", "seed=4"});
  CHECK(plan.runs[1].config.number("train.epochs") == 5);
  CHECK(plan.runs[1].config.text("data.root") == "/d");
  CHECK(plan.runs[1].config.seed("seed") == 4);
  CHECK_THROWS_WITH_AS(plan_of(text, {"attention.phi=x3"}), Contains("attention.phi is varied by the sweep"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(plan_of(text, {"optimizer.lr=3"}), Contains("s.json:2: optimizer.lr is varied"), ConfigError);
  CHECK_THROWS_WITH_AS(plan_of(R"({"seeds": [1]})", {"seed=3"}), Contains("seed is varied"), ConfigError);
}

TEST_CASE("what is wrong is told with file, line and key") {
  struct Case {
    const char* text;
    std::vector<std::string> says;
  };
  const Case cases[] = {
      {"{\n\"seeds\": [1],\n\"seeds\": [2]}", {"s.json:3", "duplicate key", "seeds"}},
      {"{\n\"seeds\": [1],\n}", {"s.json:3", "trailing comma"}},
      {"[1]", {"s.json:1", "expected an object"}},
      {"{}", {"s.json:1", "nothing to sweep over"}},
      {"{\"set\": {\"train.epochs\": 1}}", {"nothing to sweep over"}},
      {"{\n\"sedes\": [1]}", {"s.json:2", "unknown key sedes", "seeds"}},
      {"{\n\"config\": 3, \"seeds\": [1]}", {"s.json:2", "config", "got the number 3"}},
      {"{\"seeds\": [1],\n\"config\": \"nothing\"}", {"s.json:2", "no such preset"}},
      {"{\"seeds\": [1],\n\"set\": [1]}", {"s.json:2", "set: expected an object"}},
      {"{\"seeds\": [1],\n\"set\": {\n\"optimizer.lrr\": 1}}",
       {"s.json:3", "unknown key optimizer.lrr", "optimizer.lr?"}},
      {"{\"seeds\": [1],\n\"set\": {\n\"optimizer.lr\": \"fast\"}}", {"s.json:3", "optimizer.lr: expected a number"}},
      {"{\"seeds\": [1],\n\"set\": {\n\"optimizer\": {\"lr\": 1}}}", {"s.json:3", "\"optimizer.KEY\""}},
      {"{\"seeds\": [1],\n\"set\": {\n\"attention.scale\": 1,\n\"attention.divisor\": 2}}",
       {"s.json:4", "attention.scale is given twice", "attention.divisor"}},
      {"{\"seeds\": [1],\n\"set\": {\n\"seed\": 1}}", {"s.json:3", "seed: expected in \"seeds\""}},
      {"{\"grid\": {\n\"seed\": [1]}}", {"s.json:2", "seed: expected in \"seeds\""}},
      {"{\n\"grid\": {}}", {"s.json:2", "grid: expected at least one key"}},
      {"{\n\"grid\": [1]}", {"s.json:2", "grid: expected an object"}},
      {"{\"grid\": {\n\"optimizer.lr\": 1}}",
       {"s.json:2", "optimizer.lr: expected a list of values, got the number 1"}},
      {"{\"grid\": {\n\"optimizer.lr\": []}}", {"s.json:2", "optimizer.lr", "an empty one"}},
      {"{\"grid\": {\n\"optimizer.lrr\": [1]}}", {"s.json:2", "unknown key optimizer.lrr"}},
      {"{\"grid\": {\"optimizer.lr\": [\n1,\n-1]}}", {"s.json:3", "optimizer.lr", "got the number -1"}},
      {"{\"grid\": {\"attention.scale\": [1],\n\"attention.divisor\": [2]}}", {"s.json:2", "given twice"}},
      {"{\"grid\": {\n\"optimizer.lr\": [1, 1.0]}}", {"s.json:2", "lr-1"}},
      {"{\n\"variants\": []}", {"s.json:2", "variants: expected at least one"}},
      {"{\n\"variants\": {}}", {"s.json:2", "variants: expected a list"}},
      {"{\"variants\": [\n3]}", {"s.json:2", "variants[0]: expected an object"}},
      {"{\"variants\": [{\"name\": \"a\"},\n{\"set\": {}}]}", {"s.json:2", "variants[1]: expected a name"}},
      {"{\"variants\": [\n{\"name\": \"²/\"},\n{\"name\": \"///\"}]}", {"s.json:3", "variants[1]: expected a name"}},
      {"{\"variants\": [\n{\"name\": 3}]}", {"s.json:2", "variants[0].name: expected a text"}},
      {"{\"variants\": [{\"name\": \"a\",\n\"sett\": {}}]}", {"s.json:2", "variants[0]: unknown key sett"}},
      {"{\"variants\": [{\"name\": \"a\", \"set\": {\n\"optimizer.lr\": []}}]}", {"s.json:2", "optimizer.lr"}},
      {"{\"variants\": [{\"name\": \"x/c\"},\n{\"name\": \"x c\", \"set\": {\"optimizer.lr\": 1}}]}",
       {"s.json:2", "folder x-c"}},
      {"{\"variants\": [{\"name\": \"a\"},\n{\"name\": \"b\"}]}", {"s.json:2", "a and b have the same configuration"}},
      {"{\"variants\": [{\"name\": \"a\", \"set\": {\n\"optimizer.lr\": 1}}],\n\"grid\": {\"optimizer.lr\": [2]}}",
       {"s.json:2", "optimizer.lr is set by the variant \"a\" and by the grid (line 3)"}},
      {"{\"variants\": [\n{\"name\": \"plots\"}]}", {"s.json:2", "plots"}},
      {"{\n\"seeds\": []}", {"s.json:2", "seeds: expected at least one"}},
      {"{\"seeds\": [1,\n-1]}", {"s.json:2", "seed: expected a whole number"}},
      {"{\"seeds\": [1,\n1]}", {"s.json:2", "seeds: 1 is given twice"}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.text);
    std::string message;
    try {
      plan_of(c.text);
    } catch (const ConfigError& error) {
      message = error.what();
    }
    for (const std::string& text : c.says)
      CHECK_MESSAGE(message.find(text) != std::string::npos, message, " should say ", text);
  }
  std::string many = "{\"grid\": {";
  for (const char* key : {"optimizer.lr", "optimizer.eps", "model.dropout", "attention.dropout", "model.drop_path"}) {
    many += std::string(many.back() == '{' ? "" : ",") + "\"" + key + "\": [0.1,0.2,0.3,0.4,0.5,0.6,0.7]";
  }
  CHECK_THROWS_WITH_AS(plan_of(many + "}}"), Contains("more than 10000 runs"), ConfigError);
  const std::string lengthy(201, 'a');
  CHECK_THROWS_WITH_AS(plan_of("{\"variants\": [{\"name\": \"" + lengthy + "\"}]}"), Contains("longer than 200 bytes"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(read_sweep("no/such.json", base, Config()), Contains("--sweep no/such.json"), ConfigError);
}

TEST_CASE("mean and standard deviation, against numbers by hand") {
  CHECK_FALSE(mean_deviation({}).has_value());
  const MeanDeviation one = *mean_deviation({4.5});
  CHECK(one.mean == 4.5);
  CHECK_FALSE(one.deviation.has_value());
  CHECK(*mean_deviation({1, 3})->deviation == doctest::Approx(std::sqrt(2.0)));
  const MeanDeviation four = *mean_deviation({2, 4, 4, 6});  // squares 4 + 0 + 0 + 4, divided by 3
  CHECK(four.mean == doctest::Approx(4));
  CHECK(*four.deviation == doctest::Approx(std::sqrt(8.0 / 3)));
  CHECK(four.count == 4);
}

TEST_CASE("the table is over the runs that are done, and tells of the others") {
  const SweepPlan plan = plan_of(R"({"variants": [{"name": "a|b, c"}, {"name": "bad", "set": {"optimizer.lr": 9}},
      {"name": "new", "set": {"optimizer.lr": 8}}], "seeds": [0, 1, 2]})");
  std::vector<RunSummary> runs = {
      summary("done", 50, 1.5, 10),  summary("done", 40, 1.25, 12),     pending_run(),
      summary("done", 60, 1.75, 11), summary("diverged", 99, 9, 1, 12), pending_run(),
      summary("failed", 98, 9, 1),   summary("diverged", 99, 9, 1, 20), summary("running", 1, 1, 1)};
  runs[6].why = "no space";
  runs[0].test_top1 = 45.5;
  const std::vector<CellResult> cells = cell_results(plan, runs);
  REQUIRE(cells.size() == 3);
  CHECK(cells[0].status == "2 done, 1 failed");
  CHECK(cells[0].best_top1->mean == 55);
  CHECK(*cells[0].best_top1->deviation == doctest::Approx(std::sqrt(50.0)));
  CHECK(cells[1].status == "1 done, 2 diverged at steps 13, 21");
  CHECK(cells[1].best_top1->count == 1);
  CHECK(cells[2].status == "2 pending, 1 running");
  CHECK_FALSE(cells[2].best_top1.has_value());
  CHECK(sweep_table(plan, runs) ==
        "| variant | runs | status                             | best val top-1 % | test top-1 % | training loss   | "
        "seconds    |\n"
        "|---------|------|------------------------------------|------------------|--------------|-----------------|"
        "------------|\n"
        "| a\\|b, c | 3    | 2 done, 1 failed                   | 55.00 ± 7.07     | 45.50        | 1.6250 ± 0.1768 | "
        "10.5 ± 0.7 |\n"
        "| bad     | 3    | 1 done, 2 diverged at steps 13, 21 | 40.00            |              | 1.2500          | "
        "12.0       |\n"
        "| new     | 3    | 2 pending, 1 running               |                  |              |                 | "
        "           |\n");
  const TemporaryFolder folder;
  write_sweep_results(folder.path(), plan, runs);
  CHECK(read_bytes(folder / "sweep.csv").find("\n\"a|b, c\",3,2,0,1,\"2 done, 1 failed\",55,7.0710678") !=
        std::string::npos);
  CHECK(read_bytes(folder / "sweep.md").find("- a-b-c_seed-2: failed: no space") != std::string::npos);
  CHECK(read_bytes(folder / "sweep_file.json") == plan.text);
  CHECK(sweep_run_names(folder.path()) == names_of(plan));
  const JsonValue document = read_json_file(folder / "sweep.json");
  const JsonValue& run = document.find("runs")->items().at(4);
  CHECK(run.find("status")->as_text() == "diverged");
  CHECK(run.find("step")->as_int() == 12);
  CHECK(run.find("seed")->as_int() == 1);
  const JsonValue& cell = document.find("cells")->items().at(0);
  CHECK(cell.find("best_top1")->find("mean")->as_double() == 55);
  CHECK(cell.find("variant")->as_text() == "a|b, c");
  CHECK(document.find("cells")->items().at(1).find("best_top1")->find("std")->is_null());
}

TEST_CASE("a sweep goes on only with the runs its folder has") {
  const TemporaryFolder folder;
  const std::string sweep = folder / "sweep";
  const std::string text = R"({"grid": {"optimizer.lr": [1, 2]}})";
  const SweepPlan plan = plan_of(text);
  check_same_sweep(plan, sweep);
  std::filesystem::create_directory(sweep);
  check_same_sweep(plan, sweep);
  write_sweep_results(sweep, plan, {pending_run(), pending_run()});
  std::filesystem::create_directory(sweep + "/lr-1");
  write_bytes(sweep + "/lr-1/config.json", plan.runs[0].config.json());
  check_same_sweep(plan, sweep);
  check_same_sweep(plan_of(R"({"grid": {"optimizer.lr": [3, 1]}})"), sweep);  // one more; lr-2 has not begun
  check_same_sweep(plan_of(text, {"threads=3", "device=cpu"}), sweep);        // do not change a result
  CHECK_THROWS_WITH_AS(check_same_sweep(plan_of(R"({"grid": {"optimizer.lr": [2]}})"), sweep),
                       Contains("lr-1 is no run of it any more"), ConfigError);
  CHECK_THROWS_WITH_AS(check_same_sweep(plan_of(text, {"train.epochs=9"}), sweep),
                       Contains("lr-1: train.epochs: 3 -> 9"), ConfigError);
  write_bytes(folder / "other.txt", "x");
  CHECK_THROWS_WITH_AS(check_same_sweep(plan, folder.path()), Contains("is no sweep's folder"), ConfigError);
  write_bytes(sweep + "/sweep.json", "{}");
  CHECK_THROWS_WITH_AS(check_same_sweep(plan, sweep), Contains("names no runs"), ConfigError);
}

TEST_CASE("the sweeps that come with polygrad are read, and are no presets") {
  setenv("POLYGRAD_EXPERIMENTS", (polygrad::testing::source_dir() + "/apps/experiments").c_str(), 1);
  const auto preset = [](const std::string& config) { return Config::from_file(config); };
  const SweepPlan plan = read_sweep("activations", preset, Config());
  CHECK(plan.runs.size() >= 5);
  CHECK(plan.runs[1].config.text("data.name") == "tiny_imagenet");
  for (const std::string& name : preset_names()) CHECK(name != "activations");
  CHECK_THROWS_WITH_AS(read_sweep("activation", preset, Config()), Contains("did you mean activations?"), ConfigError);
  CHECK_THROWS_WITH_AS(Config::from_file("activations"), Contains("no preset of that name"), ConfigError);
  unsetenv("POLYGRAD_EXPERIMENTS");
}
