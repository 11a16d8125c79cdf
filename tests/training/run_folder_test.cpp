// Run folders: names, links, retention, and what is left when a run is killed between any two steps.
#include "apps/training/run_folder.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "engine/error.h"
#include "tests/support/isolation.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using doctest::Contains;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;
namespace fs = std::filesystem;

namespace {

void fill(const std::string& folder, const std::string& content) {
  for (const char* file : {"model.safetensors", "state.safetensors", "state.json"}) {
    write_bytes(folder + "/" + file, content);
  }
}

void save(RunFolder& run, std::int64_t step, const std::string& content = "x") {
  fill(run.begin_checkpoint(step), content);
  run.finish_checkpoint(step);
}

std::size_t entries(const std::string& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("nothing is made before open; a folder that exists is refused to a new run") {
  const TemporaryFolder folder;
  RunFolder run(folder / "runs/a");
  run.require_new();
  CHECK(run.free_bytes() > 0);
  CHECK(folder.count() == 0);
  run.open();
  CHECK(fs::is_directory(folder / "runs/a/checkpoints"));
  CHECK_THROWS_WITH_AS(run.require_new(),
                       ("[run folder] " + (folder / "runs/a") +
                        " exists already; go on with it by --resume auto, or name another folder with --out")
                           .c_str(),
                       ConfigError);
  write_bytes(folder / "file", "");
  CHECK_THROWS_AS(RunFolder(folder / "file").require_new(), ConfigError);
  CHECK_THROWS_AS(RunFolder(folder / "file").open(), IoError);
  CHECK_THROWS_AS(RunFolder(""), ConfigError);
}

TEST_CASE("open removes what a killed run left half written") {
  const TemporaryFolder folder;
  RunFolder(folder / "a").open();
  write_bytes(folder / "a/config.json", "{}");
  for (const char* name : {"a/config.json.tmp-12-3", "a/metrics.csv.tmp-1-0"}) write_bytes(folder / name, "half");
  RunFolder run(folder / "a");
  run.open();
  CHECK(entries(folder / "a") == 2);  // config.json and checkpoints
  CHECK(read_bytes(folder / "a/config.json") == "{}");
}

TEST_CASE("a checkpoint appears complete, with `latest` as a relative link to it") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a/");  // a slash at the end does not matter
  run.open();
  CHECK_FALSE(run.newest_checkpoint().has_value());
  fill(run.begin_checkpoint(500), "x");
  CHECK_FALSE(run.newest_checkpoint().has_value());
  run.finish_checkpoint(500);
  CHECK(*run.newest_checkpoint() == folder / "a/checkpoints/step-000500");
  CHECK(fs::read_symlink(folder / "a/checkpoints/latest") == "step-000500");
  CHECK(read_bytes(folder / "a/checkpoints/latest/state.json") == "x");
  save(run, 1234567);
  CHECK(fs::read_symlink(folder / "a/checkpoints/latest") == "step-1234567");
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{500, 1234567});
  CHECK(entries(folder / "a/checkpoints") == 3);
}

TEST_CASE("the same step written again replaces the old one") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  save(run, 5, "old");
  save(run, 5, "new");
  CHECK(read_bytes(folder / "a/checkpoints/latest/state.json") == "new");
  CHECK(entries(folder / "a/checkpoints") == 2);
}

TEST_CASE("keep-N: the newest N and the best stay") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  for (std::int64_t step = 10; step <= 60; step += 10) {
    save(run, step);
    if (step == 20) run.link_best(20);
    run.prune(2);
  }
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{20, 50, 60});
  CHECK(*run.best_step() == 20);
  CHECK(fs::read_symlink(folder / "a/checkpoints/best") == "step-000020");
  run.link_best(60);
  run.prune(0);  // at least one stays
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{60});
  CHECK_THROWS_WITH_AS(run.link_best(20), Contains("there is no checkpoint"), IoError);
  CHECK(*run.best_step() == 60);
}

TEST_CASE("a save that fails leaves the old checkpoints and links as they were") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  save(run, 1);
  write_bytes(run.begin_checkpoint(2) + "/model.safetensors", "half");
  CHECK_THROWS_AS(run.finish_checkpoint(2), IoError);  // files are missing
  CHECK(fs::read_symlink(folder / "a/checkpoints/latest") == "step-000001");
  run.abandon_checkpoint(2);
  CHECK(entries(folder / "a/checkpoints") == 2);
}

TEST_CASE("what a killed run left half done is removed, and never taken for a checkpoint") {
  const TemporaryFolder folder;
  {
    RunFolder run(folder / "a");
    run.open();
    save(run, 1);
    fill(run.begin_checkpoint(2), "unfinished");
  }
  CHECK(find_checkpoint(folder / "a") == folder / "a/checkpoints/step-000001");
  RunFolder run(folder / "a");
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{1});
  run.open();
  CHECK_FALSE(fs::exists(folder / "a/checkpoints/.unfinished-step-000002"));
  fs::remove(folder / "a/checkpoints/latest");
  CHECK(*run.newest_checkpoint() == folder / "a/checkpoints/step-000001");  // the link is not needed
}

TEST_CASE("a newest checkpoint that has lost a file is an error, and no older one silently takes its place") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  save(run, 1);
  save(run, 2);
  fs::remove(folder / "a/checkpoints/step-000002/state.safetensors");
  for (const std::string& path :
       {folder / "a", folder / "a/checkpoints/step-000002", folder / "a/checkpoints/latest"}) {
    CHECK_THROWS_WITH_AS(find_checkpoint(path), Contains("state.safetensors"), IoError);
  }
  CHECK_THROWS_WITH_AS(run.newest_checkpoint(), Contains("step-000002 is damaged: it has no state.safetensors"),
                       IoError);
  CHECK(find_checkpoint(folder / "a/checkpoints/step-000001") == folder / "a/checkpoints/step-000001");
}

TEST_CASE("a folder that was moved or removed while the run goes on is not made anew") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  save(run, 1);
  fs::rename(folder / "a", folder / "b");
  CHECK_THROWS_WITH_AS(run.begin_checkpoint(2), Contains("is not there any more"), IoError);
  fs::create_directories(folder / "a/checkpoints");  // another one of its name
  CHECK_THROWS_WITH_AS(run.begin_checkpoint(2), Contains("is not there any more"), IoError);
  CHECK(entries(folder / "a/checkpoints") == 0);
  fs::remove_all(folder / "a");
  fs::rename(folder / "b", folder / "a");
  save(run, 2);
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("going on from an earlier checkpoint discards the later ones") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  for (const std::int64_t step : {10, 20, 30}) save(run, step);
  run.link_best(30);
  fs::remove(folder / "a/checkpoints/step-000030/state.json");  // a damaged one goes too
  CHECK(run.discard_after(20));
  CHECK(run.checkpoint_steps() == std::vector<std::int64_t>{10, 20});
  CHECK_FALSE(fs::exists(folder / "a/checkpoints/step-000030"));
  CHECK(fs::read_symlink(folder / "a/checkpoints/latest") == "step-000020");
  CHECK_FALSE(run.best_step().has_value());
  CHECK_FALSE(fs::is_symlink(folder / "a/checkpoints/best"));
  run.link_best(10);
  CHECK_FALSE(run.discard_after(20));
  CHECK(*run.best_step() == 10);
}

TEST_CASE("a checkpoint by a user's path: itself, a link, or a run folder") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a");
  run.open();
  CHECK_THROWS_WITH_AS(find_checkpoint(folder / "none"), ("[checkpoint] there is no " + (folder / "none")).c_str(),
                       IoError);
  CHECK_THROWS_WITH_AS(find_checkpoint(folder / "a"), Contains("is no checkpoint, and no run folder with one"),
                       IoError);
  save(run, 7);
  save(run, 9);
  run.link_best(7);
  const std::string seven = folder / "a/checkpoints/step-000007";
  CHECK(find_checkpoint(seven) == seven);
  CHECK(find_checkpoint(folder / "a") == folder / "a/checkpoints/step-000009");
  const std::string best = find_checkpoint(folder / "a/checkpoints/best");
  CHECK(checkpoint_step(best) == 7);
  CHECK(checkpoint_step(folder.path()) == -1);
  CHECK(run_folder_of(best) == fs::canonical(folder / "a").string());
  fs::copy(seven, folder / "elsewhere", fs::copy_options::recursive);
  CHECK(find_checkpoint(folder / "elsewhere") == folder / "elsewhere");
  CHECK(run_folder_of(folder / "elsewhere").empty());
}

TEST_CASE("a second process is kept out of a folder that is being written") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  RunFolder run(path);
  run.open();
  const auto open_elsewhere = [&] {
    try {
      RunFolder second(path);
      second.open();
    } catch (const IoError& error) {
      return std::string(error.what()).find("another process is writing into") != std::string::npos ? 1 : 2;
    }
    return 0;
  };
  CHECK(testing::run_in_child(open_elsewhere) == 1);
  { const RunFolder ends = std::move(run); }
  CHECK(testing::run_in_child(open_elsewhere) == 0);
}
