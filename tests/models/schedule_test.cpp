// Schedules: the numbers, the ends, and what can't be built.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "engine/error.h"
#include "models/optim/schedule.h"

using namespace polygrad;

namespace {

ScheduleConfig cosine_config() {
  ScheduleConfig config;
  config.lr = 1e-3;
  config.min_lr = 1e-5;
  config.warmup_lr = 1e-6;
  config.warmup_steps = 5;
  config.total_steps = 20;
  return config;
}

ScheduleConfig one_cycle_config() {
  ScheduleConfig config;
  config.name = "one_cycle";
  config.lr = 1e-4;
  config.total_steps = 5000;
  config.warmup_steps = 1000;
  return config;
}

void check_lr(const Schedule& schedule, std::int64_t step, double expected) {
  CAPTURE(step);
  CHECK(schedule.at(step).lr == doctest::Approx(expected).epsilon(2e-6));
}

}  // namespace

TEST_CASE("cosine with warm-up: index 5 is the peak, 20 the end") {
  const Schedule schedule(cosine_config());
  check_lr(schedule, 0, 1e-6);
  check_lr(schedule, 1, 2.008e-4);
  check_lr(schedule, 5, 1e-3);
  check_lr(schedule, 6, 9.89183e-4);
  check_lr(schedule, 12, 5.56742e-4);
  check_lr(schedule, 19, 2.08169e-5);
  check_lr(schedule, 20, 1e-5);
  check_lr(schedule, 1000, 1e-5);
  CHECK_FALSE(schedule.at(3).beta1.has_value());
}

TEST_CASE("cosine per epoch without prefix: the DeiT recipe") {
  ScheduleConfig config = cosine_config();
  config.warmup_prefix = false;
  config.per_epoch = true;
  config.steps_per_epoch = 1251;
  config.warmup_steps = 5 * 1251;
  config.total_steps = 300 * 1251;
  const Schedule schedule(config);
  check_lr(schedule, 0, 1e-6);
  check_lr(schedule, 1250, 1e-6);
  check_lr(schedule, 1251, 2.008e-4);
  check_lr(schedule, 4 * 1251, 8.002e-4);
  check_lr(schedule, 5 * 1251, 9.9932e-4);
  check_lr(schedule, 300 * 1251, 1e-5);
  config.epoch_lag = 1;
  const Schedule lagging(config);
  check_lr(lagging, 0, 1e-6);
  check_lr(lagging, 2 * 1251 - 1, 1e-6);
  check_lr(lagging, 2 * 1251, 2.008e-4);
}

TEST_CASE("a warm-up longer than the schedule says which keys to change") {
  ScheduleConfig config = cosine_config();
  config.warmup_steps = config.total_steps + 1;
  CHECK_THROWS_WITH_AS(Schedule{config},
                       "[schedule.warmup_steps] 21 steps of warm-up in a schedule of 20; a shorter warm-up "
                       "(schedule.warmup_epochs or schedule.warmup_steps), or more steps (train.epochs)",
                       ConfigError);
  config.warmup_steps = -1;
  CHECK_THROWS_WITH_AS(Schedule{config}, "[schedule.warmup_steps] expected at least 0, got -1", ConfigError);
}

TEST_CASE("the corners: no warm-up, nothing but warm-up, one step") {
  ScheduleConfig config = cosine_config();
  config.warmup_steps = 0;
  check_lr(Schedule(config), 0, 1e-3);
  config.warmup_steps = config.total_steps;
  for (const bool prefix : {true, false}) {
    config.warmup_prefix = prefix;
    const Schedule schedule(config);
    check_lr(schedule, 0, 1e-6);
    CHECK(schedule.at(19).lr < 1e-3);
    check_lr(schedule, 20, 1e-5);
    for (std::int64_t step = 0; step < 25; ++step) CHECK(std::isfinite(schedule.at(step).lr));
  }
  config.total_steps = 1;
  config.warmup_steps = 0;
  check_lr(Schedule(config), 0, 1e-3);
  config.warmup_steps = 1;
  check_lr(Schedule(config), 0, 1e-6);
  for (const std::int64_t warmup : {0, 1}) {
    ScheduleConfig cycle = one_cycle_config();
    cycle.total_steps = 1;
    cycle.warmup_steps = warmup;
    check_lr(Schedule(cycle), 0, 1e-4);
    cycle.total_steps = 2;
    check_lr(Schedule(cycle), 0, 1e-4);
    check_lr(Schedule(cycle), 1, 4e-10);
  }
}

TEST_CASE("one cycle moves beta1 against the learning rate") {
  for (const char* anneal : {"linear", "cosine"}) {
    CAPTURE(anneal);
    ScheduleConfig config = one_cycle_config();
    config.anneal = anneal;
    const Schedule schedule(config);
    check_lr(schedule, 0, 4e-6);
    check_lr(schedule, 999, 1e-4);
    check_lr(schedule, 4999, 4e-10);
    check_lr(schedule, 6000, 4e-10);
    CHECK(schedule.at(0).beta1.value() == doctest::Approx(0.95));
    CHECK(schedule.at(999).beta1.value() == doctest::Approx(0.85));
    CHECK(schedule.at(4999).beta1.value() == doctest::Approx(0.95));
  }
  const Schedule linear(one_cycle_config());
  check_lr(linear, 333, 4e-6 + 96e-6 / 3);
  ScheduleConfig config = one_cycle_config();
  config.anneal = "cosine";
  check_lr(Schedule(config), 333, 4e-6 + 96e-6 / 4);  // (1 - cos(pi/3)) / 2 = 1/4
  config.cycle_momentum = false;
  CHECK_FALSE(Schedule(config).at(0).beta1.has_value());
}

TEST_CASE("steps and constants, with warm-up") {
  ScheduleConfig config;
  config.name = "step";
  config.lr = 1e-4;
  config.total_steps = 36;
  config.milestones = {27, 33};
  const Schedule milestones(config);
  check_lr(milestones, 26, 1e-4);
  check_lr(milestones, 27, 1e-5);
  check_lr(milestones, 33, 1e-6);
  config.milestones.clear();
  config.step_size = 10;
  config.gamma = 0.5;
  config.warmup_steps = 4;
  config.warmup_lr = 2e-5;
  const Schedule steps(config);
  check_lr(steps, 0, 2e-5);
  check_lr(steps, 1, 4e-5);
  check_lr(steps, 4, 1e-4);
  check_lr(steps, 10, 5e-5);
  check_lr(steps, 29, 2.5e-5);
  config.name = "constant";
  const Schedule constant(config);
  check_lr(constant, 2, 6e-5);
  check_lr(constant, 35, 1e-4);
}

TEST_CASE("a table shows the ends and the peak") {
  const std::string table = Schedule(cosine_config()).table(4);
  CHECK(table.find("\n         0         1e-06       -\n") != std::string::npos);
  CHECK(table.find("\n         5         0.001       -\n") != std::string::npos);
  CHECK(table.find("\n        19   2.08169e-05       -\n") != std::string::npos);
  ScheduleConfig one = cosine_config();
  one.total_steps = 1;
  one.warmup_steps = 0;
  CHECK(Schedule(one).table(20).find("0.001") != std::string::npos);
}

TEST_CASE("what can't be built names its key") {
  const auto fails = [](auto&& change, const char* key) {
    ScheduleConfig config = cosine_config();
    change(config);
    try {
      const Schedule schedule(config);
      FAIL_CHECK(key << ": nothing was thrown");
    } catch (const ConfigError& error) {
      CHECK_MESSAGE(std::string(error.what()).find(std::string("[schedule.") + key + "]") == 0, error.what());
    }
  };
  fails([](ScheduleConfig& c) { c.name = "cosinus"; }, "name");
  fails([](ScheduleConfig& c) { c.total_steps = 0; }, "total_steps");
  fails([](ScheduleConfig& c) { c.warmup_steps = 21; }, "warmup_steps");
  fails([](ScheduleConfig& c) { c.warmup_steps = -1; }, "warmup_steps");
  fails([](ScheduleConfig& c) { c.lr = std::nan(""); }, "lr");
  fails([](ScheduleConfig& c) { c.anneal = "quadratic"; }, "anneal");
  fails([](ScheduleConfig& c) { c.milestones = {3, 1}; }, "milestones");
  CHECK_THROWS_AS(Schedule(cosine_config()).at(-1), ValueError);
}
