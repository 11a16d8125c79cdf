#include "apps/command/lra_command.h"

#include <filesystem>

#include "data/listops_generator.h"
#include "data/lra.h"
#include "data/pathfinder.h"
#include "data/pathfinder_generator.h"
#include "data/text_pairs.h"
#include "engine/error.h"
#include "engine/file.h"
#include "engine/format.h"

namespace polygrad {

namespace {

const LraTask& task_of(const LraFlags& flags) {
  const LraTask* task = find_lra_task(flags.task);
  if (task == nullptr || task->name != flags.task) {
    throw ConfigError(format("[config] --task {}: no such task; expected {}", flags.task, lra_task_names()));
  }
  return *task;
}

void refuse_existing(const std::string& path) {
  std::error_code none;
  if (std::filesystem::exists(path, none)) {
    throw ConfigError(format("[generate] {} exists; name another folder, or remove it", path));
  }
}

}  // namespace

std::string lra_task_names() {
  std::string names;
  for (const LraTask& task : lra_tasks()) names += (names.empty() ? "" : ", ") + task.name;
  return names;
}

Config lra_task_config(const LraFlags& flags, const std::string& file) {
  const std::string name = task_of(flags).data_name();
  if (flags.preset != "default" && flags.preset != "reference") {
    throw ConfigError(format("[config] --preset {}: expected default or reference", flags.preset));
  }
  Config config = Config::from_file(flags.preset == "default" ? name : name + "_reference");
  if (!file.empty()) config.overlay(Config::from_file(file));
  return config;
}

void generate_lra(const LraFlags& flags, const Config& config, const std::function<void(std::string_view)>& say) {
  const LraTask& task = task_of(flags);
  const std::uint64_t seed = config.seed("seed");
  const std::string& folder = flags.generate;
  std::int64_t told = 0;
  const auto count_or = [&](std::int64_t otherwise) { return flags.count > 0 ? flags.count : otherwise; };
  const auto progress = [&](std::int64_t done) {
    if (done < 2 * told) return;  // at 1, 2, 4, 8 ... thousands
    say(format("{} so far", done));
    told = done;
  };
  told = 1000;
  remove_stale_temporaries(folder);  // of a generation that was stopped
  if (task.name == "listops") {
    for (const char* part : {"train", "val", "test"}) refuse_existing(format("{}/basic_{}.tsv", folder, part));
    const std::int64_t count = count_or(100000);
    write_listops(folder, count, seed, progress);
    say(format("{} trees in {}/basic_{{train,val,test}}.tsv, seed {}", count, folder, seed));
  } else if (task.name == "pathfinder") {
    const PathfinderOptions options{config.text("data.level"), config.text("generate.contrast")};
    refuse_existing(folder + "/pathfinder32/" + pathfinder_folder(options.level));
    const std::int64_t count = count_or(200000);
    write_pathfinder(folder, count, seed, options, progress);
    say(format("{} pictures in {}/pathfinder32/{}, seed {}, contrast {}", count, folder,
               pathfinder_folder(options.level), seed, options.contrast));
  } else if (task.name == "retrieval") {
    for (const char* part : {"train", "eval", "test"}) refuse_existing(format("{}/new_aan_pairs.{}.tsv", folder, part));
    const std::int64_t count = count_or(1000);
    write_synthetic_pairs(folder, count, seed);
    say(format("{} made-up pairs in {}/new_aan_pairs.{{train,eval,test}}.tsv, seed {}", count, folder, seed));
  } else {
    throw ConfigError(format("[generate] --task {} has no generator; {}", task.name, task.hint));
  }
}

}  // namespace polygrad
