// vit_train --profile below its flag: the tables, and steps that are the run's own.
#include "apps/training/profile_run.h"

#include <doctest/doctest.h>

#include <map>

#include "apps/training/profile_report.h"
#include "apps/training/trainer.h"
#include "tests/training/small_run.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

ProfileRow row(const char* phase, const char* op, const char* path, std::int64_t calls, std::int64_t milliseconds) {
  ProfileRow result;
  result.phase = phase;
  result.op = op;
  result.path = path;
  result.calls = calls;
  result.nanoseconds = milliseconds * 1'000'000;
  return result;
}

// Two steps of two threads, in round numbers.
std::vector<ProfileRow> some_rows() {
  ProfileRow first = row("forward", "linear", "blocks.0.fc", 2, 400),
             second = row("forward", "linear", "blocks.1.fc", 2, 400);
  for (ProfileRow* product : {&first, &second}) {
    product->operations = 40e9;
    product->parallel_nanoseconds = 760'000'000;
    product->product_nanoseconds = 600'000'000;
  }
  ProfileRow norm = row("backward", "norm", "norm10", 2, 1199);
  norm.bytes = 2.398e9;
  norm.parallel_nanoseconds = 2'388'000'000;
  return {first, second, norm, row("backward", "tiny", "", 6, 1)};
}

}  // namespace

TEST_CASE("the table by op") {
  const std::string expected =
      "op                       phase      calls        ms   share  GFLOP/s  ceiling  products    idle   GB/s\n"
      "norm                     backward       1    599.50  60.0 %                               0.4 %    2.0\n"
      "linear                   forward        2    400.00  40.0 %    100.0     0.50    75.0 %   5.0 %\n"
      "all others                              3      0.50   0.1 %                             100.0 %\n"
      "\n"
      "sum                      backward       4    600.00  60.0 %                               0.5 %\n"
      "sum                      forward        2    400.00  40.0 %    100.0     0.50    75.0 %   5.0 %\n"
      "sum                                     6   1000.00 100.0 %     40.0     0.20    30.0 %   2.3 %\n";
  CHECK(profile_by_op(some_rows(), {.steps = 2, .threads = 2, .ceiling_gflops = 200}) == expected);
}

TEST_CASE("the table by module joins the layers of a kind, and has no shares of a ceiling that was not measured") {
  const std::string text = profile_by_module(some_rows(), {.steps = 2, .threads = 2});
  CAPTURE(text);
  CHECK(
      text.find("blocks.*.fc              forward        2    400.00  40.0 %    100.0             75.0 %   5.0 %\n") !=
      std::string::npos);
  CHECK(text.find("norm10 ") != std::string::npos);  // a number within a name stays
  CHECK(profile_legend({.steps = 2, .threads = 2}).find("ceiling") == std::string::npos);
  CHECK(profile_legend({.steps = 2, .threads = 2, .ceiling_gflops = 200}).find("200 GFLOP/s") != std::string::npos);
}

TEST_CASE("a profile of nothing") {
  const std::string text = profile_by_op({}, {});
  CHECK(text.find("sum") != std::string::npos);
  CHECK(text.find("nan") == std::string::npos);
}

TEST_CASE("a profiled run takes the steps that a run takes, and its rows add up") {
  const Config config = small_config({"train.max_steps=7", "train.accumulate=2", "augment.mixup=0.8",
                                      "train.ema_decay=0.9", "train.clip_grad=1", "model.dropout=0.1"});
  std::vector<double> losses;
  Trainer trainer(config, small_experiment(config, 64), {.out = ""});
  trainer.on_step = [&](const StepInfo& info) { losses.push_back(info.loss); };
  trainer.run();
  REQUIRE(losses.size() == 7);

  int between = 0;
  const ProfileRunResult result =
      profile_run(config, small_experiment(config, 64), {.warmup = 2, .steps = 5, .between = [&] { ++between; }});
  CHECK(result.steps == 5);
  CHECK(between == 6);
  CHECK(result.loss == losses.back());
  CHECK(result.operations > 0);
  CHECK(result.peak_tensor_mib > 0);
  double seconds = 0;
  std::map<std::string, std::int64_t> calls;
  for (const ProfileRow& row : result.rows) {
    seconds += 1e-9 * static_cast<double>(row.nanoseconds);
    calls[row.phase + "/" + row.op] += row.calls;
  }
  CHECK(seconds == doctest::Approx(result.seconds));
  for (const char* name : {"optimizer/gradient norm", "optimizer/update", "optimizer/zero_grad", "optimizer/average"}) {
    CAPTURE(name);
    CHECK(calls[name] == 5);
  }
  CHECK(calls["data/next batch"] >= 5);
  CHECK(calls["data/mix"] == calls["data/next batch"]);
  CHECK(calls["forward/linear"] > 0);
  CHECK(calls["backward/linear"] == calls["forward/linear"]);

  CHECK(profile_run(config, small_experiment(config, 64), {.warmup = 0, .steps = 100}).steps == 7);  // max_steps
}
