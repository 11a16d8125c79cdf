// Signals at any moment: what the program exits with, and what a resume finds.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>

#include "apps/training/run_folder.h"
#include "tests/cli/tiny_run.h"

using namespace polygrad;
using namespace polygrad::testing;
namespace fs = std::filesystem;

namespace {

const Arguments kSaveEachStep = {"train.checkpoint_every_steps=1", "train.max_steps=60", "train.eval_every_steps=5"};
const Arguments kEndless = {"train.max_steps=1000000", "train.checkpoint_every_steps=50"};

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

bool is_saving(const std::string& run) {
  std::error_code error;
  for (fs::directory_iterator it(run + "/checkpoints", error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().rfind(".unfinished-step-", 0) == 0) return true;
  }
  return false;
}

// One step, validation or test of the slow model takes long: each image is 64 tokens of width 256.
const Arguments kSlow = {"model.patch_size=1", "model.embed_dim=256", "model.num_heads=4", "model.depth=6"};

Arguments slow(const Arguments& more) {
  Arguments all = kSlow;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void check_stopped(const std::string& run) {
  const std::vector<MetricsRow> trained = rows_of(run, "train");
  REQUIRE_FALSE(trained.empty());
  CHECK(checkpoint_step(run + "/checkpoints/latest") == trained.back().step());
  CHECK(status_of(run) == "stopped");
}

}  // namespace

TEST_CASE("a signal finishes the step, saves, and keeps a shell from what stands behind &&") {
  struct Case {
    int signal, code;
    const char* workers;
  };
  for (const Case& c : {Case{SIGINT, 130, "data.workers=0"},
                        {SIGTERM, 143, "data.workers=0"},
                        {SIGINT, 130, "data.workers=2"},
                        {SIGTERM, 143, "data.workers=3"},
                        {SIGHUP, 129, "data.workers=0"}}) {
    const TemporaryFolder folder;
    Arguments settings = kEndless;
    settings.emplace_back(c.workers);
    const std::string command = shell_command(tiny_run(folder, "run", settings));
    const std::string script =
        "(echo $BASHPID >" + (folder / "pid") + "; exec " + command + ") && touch " + (folder / "SHOULD_NOT_EXIST");
    Process process("/bin/bash", {"-c", script});
    REQUIRE(wait_for_steps(process, folder / "run", 3));
    kill(std::stoi(read_bytes(folder / "pid")), c.signal);
    const Outcome outcome = process.wait();
    CHECK(outcome.code == c.code);
    CHECK(contains(outcome.err, "stopped after step"));
    CHECK_FALSE(exists(folder / "SHOULD_NOT_EXIST"));
    check_stopped(folder / "run");
  }
}

TEST_CASE("three signals within a moment, as timeout and schedulers send them, are one") {
  const TemporaryFolder folder;
  const Arguments arguments = tiny_run(folder, "run", kEndless);
  Process process("vit_train", arguments);
  REQUIRE(wait_for_steps(process, folder / "run", 3));
  for (int i = 0; i < 3; ++i) {
    process.signal(SIGINT);
    if (i < 2) pause(1);
  }
  CHECK(process.wait().code == 130);
  check_stopped(folder / "run");
  // timeout signals its child twice: once alone, once with its group.
  const Outcome outcome = run_program("/usr/bin/timeout", [&] {
    Arguments all = {"2", bin_dir() + "/vit_train"};
    const Arguments resumed = tiny_run(folder, "run", kEndless, {"--resume", "auto"});
    all.insert(all.end(), resumed.begin(), resumed.end());
    return all;
  }());
  CHECK(outcome.code == 124);  // timeout's own
  check_stopped(folder / "run");
}

TEST_CASE("under nohup a run outlives its terminal") {
  const TemporaryFolder folder;
  const std::string command = shell_command(tiny_run(folder, "run", {"train.max_steps=400", "train.epochs=50"}));
  Process process("/bin/bash", {"-c", "trap '' HUP; exec " + command});
  REQUIRE(wait_for_steps(process, folder / "run", 3));
  process.signal(SIGHUP);
  CHECK(process.wait().code == 0);
  CHECK(status_of(folder / "run") == "done");
}

TEST_CASE("a second signal leaves at once, and harms nothing") {
  const TemporaryFolder folder;
  // A step of 4 x 2000 images: long.
  const Arguments settings = slow({"train.accumulate=2000", "train.epochs=2000", "train.max_steps=null"});
  Process process("vit_train", tiny_run(folder, "run", settings, {}, 16000, 8));
  REQUIRE(wait_until(process, [&] { return !rows_of(folder / "run", "start").empty(); }));
  pause(100);
  process.signal(SIGTERM);
  pause(400);
  CHECK(process.running());
  process.signal(SIGINT);
  CHECK(process.wait().code == 130);
  CHECK(rows_of(folder / "run", "train").empty());
  CHECK(rows_of(folder / "run", "end").empty());
}

TEST_CASE("a signal within a save: a resume ends with the bytes of an uninterrupted run") {
  const TemporaryFolder folder;
  REQUIRE(train(tiny_run(folder, "whole", kSaveEachStep)).code == 0);
  const std::string run = folder / "run";
  const Arguments arguments = tiny_run(folder, "run", kSaveEachStep, {"--resume", "auto"});
  int hits = 0;
  for (int i = 0; i < 6; ++i) {
    Process process("vit_train", arguments);
    const std::size_t before = rows_of(run, "train").size();
    REQUIRE(wait_for_steps(process, run, before + 2));
    REQUIRE(wait_until(process, [&] { return is_saving(run); }));
    const int number = i % 2 == 0 ? SIGTERM : SIGINT;
    process.signal(number);
    hits += is_saving(run);
    CHECK(process.wait().code == 128 + number);
    check_stopped(run);
  }
  CHECK(hits > 0);
  REQUIRE(train(arguments).code == 0);
  for (const char* file : {"model.safetensors", "state.safetensors"}) {
    CHECK(read_bytes(folder / ("whole/checkpoints/latest/" + std::string(file))) ==
          read_bytes(run + "/checkpoints/latest/" + file));
  }
}

TEST_CASE("a signal within a long validation gives it up; within the look at the test samples too") {
  const TemporaryFolder folder;
  // 4000 samples of the slow model, in the first case all but 40 for validation.
  struct Case {
    std::string name, fraction;
    std::int64_t train, test;
    std::size_t validations;
  };
  for (const Case& c :
       {Case{"validation", "data.val_fraction=0.99", 4000, 8, 0}, Case{"test", "data.val_fraction=0.2", 40, 4000, 1}}) {
    const std::string run = folder / c.name;
    const Arguments settings = slow({c.fraction, "train.max_steps=2", "train.eval_every_steps=2", "data.workers=2"});
    Process process("vit_train", tiny_run(folder, c.name, settings, {}, c.train, c.test));
    REQUIRE(wait_until(
        process, [&] { return rows_of(run, "train").size() == 2 && rows_of(run, "eval").size() == c.validations; }));
    pause(200);
    process.signal(SIGTERM);
    CHECK(process.wait().code == 143);
    check_stopped(run);
    CHECK(rows_of(run, "eval").size() == c.validations);
    CHECK(contains(read_bytes(run + "/checkpoints/latest/state.json"), "\"pending\": \"evaluation\"") ==
          (c.validations == 0));
  }
}

TEST_CASE("a signal while the data are still being read leaves at once, and no folder") {
  for (const int number : {SIGINT, SIGTERM}) {
    const TemporaryFolder folder;
    fs::create_directories(folder / "data/train/a");
    write_bytes(folder / "data/train/a/1.png", "");
    const std::string names = folder / "names";
    REQUIRE(mkfifo(names.c_str(), 0600) == 0);  // whoever reads it waits for a writer
    Process process("vit_train", {"--config", "image_folder", "--data", folder / "data", "--set",
                                  "data.class_map=" + names, "--out", folder / "run"});
    int writer = -1;
    REQUIRE(wait_until(process, [&] { return (writer = open(names.c_str(), O_WRONLY | O_NONBLOCK)) >= 0; }));
    process.signal(number);
    CHECK(process.wait().code == 128 + number);
    close(writer);
    CHECK_FALSE(exists(folder / "run"));
  }
}
