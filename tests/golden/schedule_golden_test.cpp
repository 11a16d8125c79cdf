// Schedules against torch's OneCycleLR and MultiStepLR, and timm's cosine, step by step.
#include <doctest/doctest.h>

#include "models/optim/schedule.h"
#include "tests/golden/golden_files.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

ScheduleConfig config_of(const GoldenCase& row) {
  ScheduleConfig config;
  if (row.op == "onecycle_lr") {
    config.name = "one_cycle";
    config.lr = row.number("max_lr", 0);
    config.total_steps = row.integer("total_steps", 0);
    config.warmup_steps = row.integer("warmup_steps", 0);
    config.anneal =
        row.attributes.count("anneal") != 0 && row.attributes.at("anneal") == "linear" ? "linear" : "cosine";
    config.cycle_momentum = row.integer("cycle_momentum", 1) != 0;
    config.base_momentum = row.number("base_momentum", 0.85);
    config.max_momentum = row.number("max_momentum", 0.95);
    config.div_factor = row.number("div_factor", 25);
    config.final_div_factor = row.number("final_div_factor", 1e4);
  } else if (row.op == "timm_cosine") {
    config.lr = row.number("base_lr", 0);
    config.min_lr = row.number("lr_min", 0);
    config.warmup_steps = row.integer("warmup_t", 0);
    config.warmup_lr = row.number("warmup_lr_init", 0);
    config.warmup_prefix = row.integer("warmup_prefix", 0) != 0;
    // timm's t_initial is the length of the cosine itself.
    config.total_steps = row.integer("t_initial", 0) + (config.warmup_prefix ? config.warmup_steps : 0);
  } else {
    config.name = "step";
    config.lr = row.number("base_lr", 0);
    config.gamma = row.number("gamma", 0.1);
    std::istringstream milestones(row.attributes.at("milestones"));
    for (std::string word; std::getline(milestones, word, ',');) config.milestones.push_back(std::stoll(word));
    config.total_steps = config.milestones.back() + 1;
  }
  return config;
}

}  // namespace

TEST_CASE("schedules against torch and timm") {
  if (golden_folder().empty()) return skip("sample data missing: POLYGRAD_GOLDEN is not set");
  const std::string folder = golden_folder() + "/ops";
  int checked = 0;
  for (const GoldenCase& row : read_manifest(folder + "/manifest.tsv")) {
    if (row.op != "onecycle_lr" && row.op != "timm_cosine" && row.op != "multistep") continue;
    CAPTURE(row.name);
    const SafetensorsFile file(folder + "/" + row.file);
    const Schedule schedule(config_of(row));
    const std::vector<std::int64_t> steps = file.load(row.name + "/step").to_vector<std::int64_t>();
    const std::vector<double> lr = file.load(row.name + "/lr").to_vector<double>();
    std::vector<double> beta1;
    if (file.contains(row.name + "/beta1")) beta1 = file.load(row.name + "/beta1").to_vector<double>();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      CAPTURE(steps[i]);
      const ScheduleValue value = schedule.at(steps[i]);
      CHECK(std::abs(value.lr - lr[i]) <= 1e-10 * std::abs(lr[i]) + 1e-18);
      CHECK(value.beta1.has_value() == !beta1.empty());
      if (!beta1.empty()) CHECK(std::abs(value.beta1.value_or(0) - beta1[i]) <= 1e-10);
    }
    ++checked;
  }
  CHECK(checked > 0);
}
