// What the numbers of a run are warned of, and near misses that must stay silent.
#include "apps/training/health.h"

#include <doctest/doctest.h>

#include <cmath>

using namespace polygrad;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Evaluation {
  std::int64_t step;
  double val_loss, val_top1;
  double loss, top1;  // of the training samples
};

struct Row {
  const char* what;
  HealthOptions options;
  std::vector<Evaluation> evaluations;
  std::string expected;  // begins a warning's telling part; "" for none
};

// All warnings of a run, of 1000 samples of val and 2000 of each train row.
std::vector<std::string> warnings_of(const Row& row) {
  Health health(row.options);
  std::vector<std::string> all;
  for (const Evaluation& one : row.evaluations) {
    const EvalResult result{.loss = one.val_loss, .top1 = one.val_top1, .top5 = kNan, .count = 1000};
    for (std::string& text :
         health.after_evaluation(one.step, result, {.loss = one.loss, .top1 = one.top1, .counted = 2000})) {
      all.push_back(std::move(text));
    }
  }
  return all;
}

constexpr HealthOptions kTen = {.chance = 10, .classes = 10, .total_steps = 3000, .warmup_steps = 0};

HealthOptions with(HealthOptions options, std::int64_t total, std::int64_t warmup = 0, bool overfit = false) {
  options.total_steps = total;
  options.warmup_steps = warmup;
  options.overfit = overfit;
  return options;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"a run that goes well",
       kTen,
       {{500, 1.2, 60, 1.4, 55}, {1000, 0.6, 80, 0.6, 81}, {2000, 0.4, 87, 0.3, 90}, {3000, 0.42, 87, 0.25, 92}},
       ""},
      // chance
      {"still at chance", kTen, {{1000, 2.30, 10.4, 2.31, 10}}, "after 1000 steps top-1 is 10.40 %"},
      {"at chance, one step before the patience ends", kTen, {{999, 2.30, 10.4, 2.31, 10}}, ""},
      {"two deviations above chance and a little", kTen, {{1000, 2.30, 12.0, 2.31, 10}}, ""},
      {"a short run at a third", with(kTen, 600), {{200, 2.30, 10, 2.31, 10}}, "after 200 steps"},
      {"a short run before a third", with(kTen, 600), {{199, 2.30, 10, 2.31, 10}}, ""},
      {"a run of a few steps", with(kTen, 30), {{10, 2.30, 10, 2.31, 10}, {30, 2.30, 10, 2.31, 10}}, ""},
      {"in the warm-up", with(kTen, 600, 150), {{150, 2.30, 10, 2.31, 10}, {349, 2.30, 10, 2.31, 10}}, ""},
      {"long after the warm-up", with(kTen, 600, 150), {{350, 2.30, 10, 2.31, 10}}, "after 350 steps"},
      {"training on the samples it validates on",
       with(kTen, 2000, 0, true),
       {{1000, 2.30, 10, 2.31, 10}},
       "after 1000"},
      {"a majority of 90 % is chance",
       {.chance = 90, .classes = 2, .total_steps = 3000},
       {{1000, 0.33, 90.2, 0.3, 90}},
       "after 1000"},
      // labels
      {"learned, but not for val", kTen, {{300, 3.1, 11, 0.9, 75}}, "the labels of val may not be those of train"},
      {"the same with few classes", {.chance = 34, .classes = 3, .total_steps = 3000}, {{300, 1.3, 36, 0.5, 50}}, ""},
      {"learned, and half of it holds", kTen, {{300, 2.0, 50, 0.9, 70}}, ""},
      {"nothing learned yet", kTen, {{300, 2.4, 11, 1.9, kNan}}, ""},
      // overfitting
      {"far better on training", kTen, {{3000, 1.5, 60, 0.1, 97}}, "top-1 is 97.00 % on the training samples"},
      {"better on training", kTen, {{3000, 0.9, 72, 0.2, 95}}, ""},
      {"mixed targets have no accuracy", kTen, {{3000, 1.5, 60, 0.1, kNan}}, ""},
      {"overfitting on purpose", with(kTen, 3000, 0, true), {{3000, 1.5, 60, 0.1, 97}}, ""},
      {"the loss on val rises for long",
       kTen,
       {{500, 1.0, 65, 1.0, kNan}, {1000, 1.1, 66, 0.8, kNan}, {1500, 1.2, 66, 0.6, kNan}, {2000, 1.3, 66, 0.5, kNan}},
       "the loss on val rises: 1.3000, 3 evaluations after its lowest, 1.0000"},
      {"it rises, but not for long", kTen, {{500, 1.0, 65, 1.0, kNan}, {1000, 1.4, 66, 0.5, kNan}}, ""},
      {"it rises a little",
       kTen,
       {{500, 1.0, 65, 1.0, kNan}, {1000, 1.1, 66, 0.8, kNan}, {1500, 1.2, 66, 0.6, kNan}, {2000, 1.2, 66, 0.5, kNan}},
       ""},
      {"both rise",
       kTen,
       {{500, 1.0, 65, 1.0, kNan}, {1000, 1.4, 60, 1.3, kNan}, {1500, 1.4, 60, 1.3, kNan}, {2000, 1.4, 60, 1.3, kNan}},
       ""},
      // not finite
      {"a NaN in val alone", kTen, {{500, kNan, 60, 1.0, 60}}, "the loss on val is nan while training goes on"},
      {"an infinity in val alone", kTen, {{500, INFINITY, 60, 1.0, 60}}, "the loss on val is inf"},
      {"a NaN in both", kTen, {{500, kNan, 60, kNan, 60}}, ""},
  };
  return all;
}

}  // namespace

TEST_CASE("each warning is given where it should, and not for a near miss") {
  for (const Row& row : rows()) {
    CAPTURE(row.what);
    const std::vector<std::string> warnings = warnings_of(row);
    if (row.expected.empty()) {
      CHECK_MESSAGE(warnings.empty(), (warnings.empty() ? "" : warnings[0]));
      continue;
    }
    REQUIRE(warnings.size() == 1);
    CHECK_MESSAGE(warnings[0].rfind("warning    ", 0) == 0, warnings[0]);
    CHECK_MESSAGE(warnings[0].find(row.expected) != std::string::npos, warnings[0]);
  }
}

TEST_CASE("each warning is given once") {
  for (const Row& row : rows()) {
    if (row.expected.empty()) continue;
    CAPTURE(row.what);
    Row longer = row;
    for (int i = 0; i < 5; ++i) longer.evaluations.push_back(row.evaluations.back());
    int times = 0;
    for (const std::string& text : warnings_of(longer)) {
      const std::string telling = text.substr(0, 40);
      for (const std::string& other : warnings_of(row)) times += other.substr(0, 40) == telling ? 1 : 0;
    }
    CHECK(times == 1);
  }
}

TEST_CASE("the first loss of a fresh model is ln K, give or take") {
  const auto warns = [](std::int64_t classes, double loss, std::int64_t samples = 10000) {
    const std::vector<std::string> warnings = Health({.classes = classes}).after_first_step(loss, samples);
    return warnings.empty() ? std::string() : warnings[0];
  };
  CHECK(warns(10, 2.3026).empty());
  CHECK(warns(10, 2.3026 * 1.1).empty());
  CHECK(warns(10, 2.3026 * 0.9).empty());
  CHECK(warns(10, 2.3026 * 1.11).find("should have 2.3026: scores that are too large") != std::string::npos);
  CHECK(warns(10, 2.3026 * 0.89).find("a batch of few classes") != std::string::npos);
  CHECK(warns(200, 5.2983).empty());
  CHECK(warns(200, 2.3026).find("a fresh model of 200 classes should have 5.2983") != std::string::npos);
  CHECK(warns(2, 0.72).empty());
  CHECK(warns(1, 0.0).empty());
  // Few samples tell little.
  CHECK(warns(10, 2.3026 * 1.15, 16).empty());
  CHECK_FALSE(warns(10, 2.3026 * 1.3, 16).empty());
  CHECK(warns(10, kNan).empty());  // that is a divergence
}

TEST_CASE("a number that is not known yet is not told") {
  const EvalResult result{.loss = kNan, .top1 = 20, .top5 = kNan, .count = 100};
  const auto warning = [&](const TrainingRow& training) {
    const std::vector<std::string> all = Health({.classes = 5}).after_evaluation(1, result, training);
    return all.empty() ? std::string() : all[0];
  };
  CHECK(warning({.loss = 1.25}).find("the loss on val is nan while training goes on with 1.2500: ") !=
        std::string::npos);
  CHECK(warning({}).find("the loss on val is nan: a picture") != std::string::npos);  // as behind a resume
}
