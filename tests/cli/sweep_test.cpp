// vit_train --sweep as its users meet it: tables, folders, kills, signals, failures.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "apps/training/json_text.h"
#include "apps/training/metrics_log.h"
#include "apps/training/run_folder.h"
#include "engine/generator.h"
#include "tests/cli/program.h"
#include "tests/data/file_bytes.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// IDX files of 8 x 8 pictures: noise with a bright row that tells the class.
void write_part(const std::string& folder, const std::string& part, std::uint32_t count) {
  Generator generator(count);
  std::string pixels, labels;
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t p = 0; p < 64; ++p) {
      pixels += static_cast<char>(generator.integer(0, 128) + (p / 8 == i % 4 ? 100 : 0));
    }
    labels += static_cast<char>(i % 4);
  }
  write_bytes(folder + "/" + part + "-images-idx3-ubyte", idx_bytes(8, {count, 8, 8}, pixels));
  write_bytes(folder + "/" + part + "-labels-idx1-ubyte", idx_bytes(8, {count}, labels));
}

// A folder with data, a configuration of a tiny model, and a sweep of two variants, of which one diverges.
struct Place {
  Place() {
    fs::create_directory(folder / "data");
    write_part(folder / "data", "train", 120);
    write_part(folder / "data", "t10k", 20);
    write_bytes(folder / "tiny.json", R"({"data": {"name": "idx", "root": ")" + (folder / "data") + R"("},
      "model": {"name": "vit_tiny", "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 3},
      "attention": {"phi": "x3"}, "schedule": {"name": "constant"},
      "train": {"batch_size": 10, "epochs": 4, "log_every_steps": 1, "checkpoint_every_steps": 1}})");
    write_sweep("[0, 1]");
  }
  void write_sweep(const std::string& seeds, const std::string& more = "") const {
    write_bytes(folder / "pair.json", "{\"config\": \"" + (folder / "tiny.json") + R"(", "variants": [
      {"name": "x3/c", "set": {"optimizer.lr": 0.003}},
      {"name": "too fast", "set": {"optimizer.lr": 1e5, "attention.scale": 1}})" +
                                          more + "],\n \"seeds\": " + seeds + "}");
  }
  Arguments sweep(const std::string& out, const Arguments& more = {}) const {
    Arguments arguments = {"--sweep", folder / "pair.json", "--out", folder / out, "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  Outcome run(const std::string& out, const Arguments& more = {}) const {
    return run_program("vit_train", sweep(out, more));
  }
  TemporaryFolder folder;
};

std::string status_of(const std::string& run) {
  std::string status;
  for (const MetricsRow& row : read_metrics(run + "/metrics.jsonl")) {
    if (row.event() == "end") status = row.json().find("status")->as_text();
  }
  return status;
}

std::size_t rows_of(const std::string& run, const std::string& event) {
  std::size_t count = 0;
  if (!exists(run + "/metrics.jsonl")) return 0;
  for (const MetricsRow& row : read_metrics(run + "/metrics.jsonl")) count += row.event() == event ? 1 : 0;
  return count;
}

// Waits until the run has logged `steps` train rows; false where the program ended before.
bool wait_for_steps(Process& process, const std::string& run, std::size_t steps) {
  for (int i = 0; i < 60000 && process.running(); ++i) {
    if (rows_of(run, "train") >= steps) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

double best_of(const std::string& sweep) {
  return read_json_file(sweep + "/sweep.json").find("runs")->items().at(0).find("best_top1")->as_double();
}

// What a sweep's runs came to, without how long they took.
std::string results_of(const std::string& sweep) {
  const JsonValue document = read_json_file(sweep + "/sweep.json");
  std::string text;
  for (JsonValue run : document.find("runs")->items()) {
    run.set("seconds", JsonValue());
    text += run.dump() + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("two variants x two seeds, one variant diverging: table, folders, exit 0; again: nothing is trained") {
  const Place place;
  const std::string out = place.folder / "out";
  const Outcome outcome = place.run("out");
  CAPTURE(outcome.err);
  CAPTURE(outcome.out);
  CHECK(outcome.code == 0);
  for (const char* file : {"sweep.json", "sweep.md", "sweep.csv", "sweep_file.json", "x3-c_seed-0/config.json",
                           "x3-c_seed-1/checkpoints/best/model.safetensors", "too-fast_seed-1/metrics.jsonl"}) {
    CHECK(exists(out + "/" + file));
  }
  CHECK(read_bytes(out + "/sweep_file.json") == read_bytes(place.folder / "pair.json"));
  CHECK(status_of(out + "/x3-c_seed-1") == "done");
  CHECK(status_of(out + "/too-fast_seed-0") == "diverged");
  CHECK(contains(outcome.out, "| x3/c "));
  CHECK(contains(outcome.out, " ± "));
  CHECK(contains(outcome.out, "| too fast | 2    | diverged at steps "));
  CHECK(contains(outcome.err, "run        4 of 4: too-fast_seed-1"));
  CHECK(contains(read_bytes(out + "/sweep.md"), outcome.out));
  const JsonValue document = read_json_file(out + "/sweep.json");
  const JsonValue& cell = document.find("cells")->items().at(0);
  const double first = document.find("runs")->items().at(0).find("best_top1")->as_double();
  const double second = document.find("runs")->items().at(2).find("best_top1")->as_double();
  CHECK(cell.find("best_top1")->find("mean")->as_double() == doctest::Approx((first + second) / 2));
  CHECK(cell.find("best_top1")->find("std")->as_double() == doctest::Approx(std::abs(first - second) / std::sqrt(2.0)));
  CHECK(cell.find("test_top1")->find("count")->as_int() == 2);
  if (exists("/usr/bin/gnuplot")) {
    const std::string accuracy = read_bytes(out + "/plots/accuracy.gp");
    CHECK(contains(accuracy, "x3/c, seed 0, validation"));
    CHECK(contains(accuracy, "x3/c, seed 1, validation"));
  }

  const std::string results = results_of(out);
  fs::remove_all(place.folder / "data");  // finished runs need none
  const Outcome again = place.run("out");
  CHECK(again.code == 0);
  CHECK(again.out == outcome.out);
  CHECK_FALSE(contains(again.err, "run        "));
  CHECK(results_of(out) == results);
  CHECK(rows_of(out + "/x3-c_seed-0", "start") == 1);
  CHECK(rows_of(out + "/too-fast_seed-0", "start") == 1);
}

TEST_CASE("killed in the middle of two runs, the same command ends with the bytes of an uninterrupted sweep") {
  const Place place;
  REQUIRE(place.run("whole").code == 0);
  const std::string cut = place.folder / "cut";
  for (const auto& [run, steps] : {std::pair("x3-c_seed-0", 9), std::pair("x3-c_seed-1", 17)}) {
    Process process("vit_train", place.sweep("cut"));
    REQUIRE(wait_for_steps(process, cut + "/" + run, steps));
    process.signal(SIGKILL);
    CHECK(process.wait().code == 137);
    CHECK(status_of(cut + "/" + run) == "");
    CHECK(exists(cut + "/sweep.json"));
  }
  const Outcome outcome = place.run("cut");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(rows_of(cut + "/x3-c_seed-1", "start") == 2);
  CHECK(results_of(cut) == results_of(place.folder / "whole"));
  for (const char* run : {"x3-c_seed-0", "x3-c_seed-1"}) {
    for (const char* file : {"latest/model.safetensors", "latest/state.safetensors", "best/model.safetensors"}) {
      const std::string path = std::string("/") + run + "/checkpoints/" + file;
      CHECK(read_bytes(cut + path) == read_bytes(place.folder / "whole" + path));
    }
  }
}

TEST_CASE("SIGINT, SIGTERM and SIGHUP save the run under way and end the sweep") {
  const Place place;
  for (const auto& [number, code, out] :
       {std::tuple(SIGTERM, 143, "term"), std::tuple(SIGINT, 130, "int"), std::tuple(SIGHUP, 129, "hup")}) {
    Process process("vit_train", place.sweep(out));
    const std::string run = place.folder / out + "/x3-c_seed-0";
    REQUIRE(wait_for_steps(process, run, 3));
    process.signal(number);
    const Outcome outcome = process.wait();
    CHECK(outcome.code == code);
    CHECK(outcome.out == "");
    CHECK(contains(outcome.err, "stopped with 0 of 4 runs over; the same command goes on"));
    CHECK(status_of(run) == "stopped");
    CHECK_FALSE(exists(place.folder / out + "/too-fast_seed-0"));
    CHECK(contains(read_bytes(place.folder / out + "/sweep.md"), "1 pending, 1 stopped"));
  }
  CHECK(place.run("term").code == 0);
  CHECK(status_of(place.folder / "term/x3-c_seed-0") == "done");
}

TEST_CASE("a sweep whose folder is moved away does not begin another run") {
  const Place place;
  Process process("vit_train", place.sweep("out"));
  REQUIRE(wait_for_steps(process, place.folder / "out/x3-c_seed-0", 3));
  fs::rename(place.folder / "out", place.folder / "moved");
  const Outcome outcome = process.wait();
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(contains(outcome.error_line(), (place.folder / "out") + " is not there any more"));
  CHECK_FALSE(exists(place.folder / "out/too-fast_seed-0"));
  CHECK_FALSE(exists(place.folder / "moved/too-fast_seed-0"));
  CHECK(place.run("moved").code == 0);
  CHECK(status_of(place.folder / "moved/x3-c_seed-0") == "done");
}

TEST_CASE("rows that a power cut has damaged are mended, without training anew") {
  const Place place;
  place.write_sweep("[0]");
  REQUIRE(place.run("out").code == 0);
  const std::string run = place.folder / "out/x3-c_seed-0", weights = run + "/checkpoints/latest/model.safetensors";
  const std::string before = read_bytes(weights);
  const double best = best_of(place.folder / "out");
  write_bytes(run + "/metrics.jsonl", std::string(4096, '\0'));
  const Outcome outcome = place.run("out");
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(status_of(run) == "done");
  CHECK(rows_of(run, "train") == 0);
  CHECK(best_of(place.folder / "out") == best);
  CHECK(read_bytes(weights) == before);
}

TEST_CASE("lra_train sweeps over a task's preset") {
  const TemporaryFolder folder;
  REQUIRE(run_program("lra_train", {"--task", "listops", "--generate", folder / "data", "--count", "100"}).code == 0);
  write_bytes(folder / "two.json", R"({"set": {"train.max_steps": 2, "train.batch_size": 4, "model.embed_dim": 16,
    "model.depth": 1, "model.num_heads": 2, "data.text_length": 600, "eval.split": "val"},
    "grid": {"attention.phi": ["softmax", "x"]}})");
  const Outcome outcome = run_program("lra_train", {"--task", "listops", "--sweep", folder / "two.json", "--data",
                                                    folder / "data", "--out", folder / "out"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(contains(outcome.out, "| softmax       | 1    | done"));
  CHECK(status_of(folder / "out/phi-x") == "done");
  const Outcome no_task = run_program("lra_train", {"--sweep", folder / "two.json"});
  CHECK(no_task.code == 2);
  CHECK(contains(no_task.error_line(), "no --task"));
}

TEST_CASE("a run that fails lets the others go on, and is tried again by the next call") {
  const Place place;
  place.write_sweep("[0]");
  REQUIRE(place.run("out").code == 0);
  place.write_sweep("[0, 1]");
  const std::string out = place.folder / "out";
  {
    RunFolder held(out + "/x3-c_seed-1");
    held.open();
    const Outcome outcome = place.run("out");
    CAPTURE(outcome.err);
    CHECK(outcome.code == 5);
    CHECK(contains(outcome.error_line(), "1 of 4 runs failed; x3-c_seed-1: "));
    CHECK(contains(outcome.error_line(), "another process is writing into " + out + "/x3-c_seed-1"));
    CHECK(status_of(out + "/too-fast_seed-1") == "diverged");
    CHECK(contains(outcome.out, "| 1 done, 1 failed "));
    CHECK(contains(read_bytes(out + "/sweep.md"), "- x3-c_seed-1: failed: [run folder]"));
  }
  CHECK(place.run("out").code == 0);
  CHECK(status_of(out + "/x3-c_seed-1") == "done");
  CHECK(rows_of(out + "/x3-c_seed-0", "start") == 1);
}

TEST_CASE("a run that is done, but lost something on its way, stays done; the exit code tells of it") {
  const Place place;
  place.write_sweep("[0]");
  REQUIRE(place.run("out").code == 0);
  place.write_sweep("[0, 1]");
  const std::string out = place.folder / "out", run = out + "/x3-c_seed-1";
  fs::create_directories(run + "/checkpoints/best/in the way");  // where a link would be
  const Outcome outcome = place.run("out", {"--quiet"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 5);
  CHECK(contains(outcome.error_line(),
                 "1 of 4 runs ended with an error, though done; x3-c_seed-1: [train] the run is "
                 "done and saved, but what follows its last save is not: "));
  CHECK(status_of(run) == "done");
  CHECK(contains(outcome.out, "| 2    | done"));
  CHECK(contains(read_bytes(out + "/sweep.md"), "- x3-c_seed-1: done: [train]"));
  CHECK(place.run("out").code == 0);
  CHECK(rows_of(run, "start") == 1);
}

TEST_CASE("what can't be trained is refused before the first run, and leaves no folder") {
  const Place place;
  const std::string out = place.folder / "out";
  const auto refused = [&](int code, const Arguments& says, const Arguments& more = {}) {
    const Outcome outcome = place.run("out", more);
    CAPTURE(outcome.err);
    CHECK(outcome.code == code);
    for (const std::string& text : says) CHECK(contains(outcome.error_line(), text));
    CHECK_FALSE(exists(out));
  };
  place.write_sweep("[0]", R"(,
      {"name": "heads", "set": {"model.num_heads": 5}})");  // can't be built: only the model knows
  refused(2, {"num_heads 5", "run heads_seed-0"});
  place.write_sweep("[0, 0]");
  refused(2, {"pair.json:4", "seeds"});
  place.write_sweep("[0]");
  refused(2, {"optimizer.lr", "pair.json:2"}, {"--set", "optimizer.lr=1"});
  refused(2, {"--config fashion_mnist"}, {"--config", "fashion_mnist"});
  refused(3, {place.folder / "none", "run x3-c_seed-0"}, {"--data", place.folder / "none"});
  refused(6, {"POLYGRAD_CUDA"}, {"--device", "cuda:0"});
  for (const char* flag : {"--resume=auto", "--init=w", "--overfit=3", "--allow-change=seed", "--eval=x", "--profile",
                           "--print-schedule", "--check-data", "--contact-sheet=x.png", "--plot=x"}) {
    refused(2, {"--sweep"}, {flag});
  }
  const Outcome missing = run_program("vit_train", {"--sweep", place.folder / "no.json"});
  CHECK(missing.code == 2);
  CHECK(contains(missing.error_line(), "no.json"));
}

TEST_CASE("a dry run lists the runs and writes nothing; a changed sweep is refused, an added run is not") {
  const Place place;
  place.write_sweep("[5]");
  const Outcome dry = place.run("out", {"--dry-run"});
  CHECK(dry.code == 0);
  CHECK(contains(dry.out, "x3-c_seed-5      pending  optimizer.lr=0.003 seed=5\n"));
  CHECK(contains(dry.out, "too-fast_seed-5  pending  optimizer.lr=1e+05 attention.scale=1 seed=5\n"));
  CHECK(contains(dry.out, "2 runs, in " + (place.folder / "out")));
  CHECK_FALSE(exists(place.folder / "out"));

  REQUIRE(place.run("out", {"--set", "train.max_steps=3"}).code == 0);
  const std::string results = results_of(place.folder / "out");
  const Outcome changed = place.run("out", {"--set", "train.max_steps=4"});
  CHECK(changed.code == 2);
  CHECK(contains(changed.error_line(), "x3-c_seed-5: train.max_steps: 3 -> 4"));
  CHECK(results_of(place.folder / "out") == results);
  place.write_sweep("[6, 5]");
  CHECK(contains(place.run("out", {"--set", "train.max_steps=3", "--dry-run"}).out, "x3-c_seed-5      done"));
  CHECK(place.run("out", {"--set", "train.max_steps=3"}).code == 0);
  CHECK(status_of(place.folder / "out/x3-c_seed-6") == "done");
  CHECK(rows_of(place.folder / "out/x3-c_seed-5", "start") == 1);
  const Outcome foreign = place.run("data");
  CHECK(foreign.code == 2);
  CHECK(contains(foreign.error_line(), "is no sweep's folder"));
}
