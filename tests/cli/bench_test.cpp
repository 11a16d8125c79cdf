// polygrad_bench from the command line: one JSON line with the promised keys, threads heard, exit codes.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/training/metrics_log.h"
#include "engine/generator.h"
#include "ops/precision.h"
#include "tests/cli/program.h"
#include "tests/data/file_bytes.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

using Arguments = std::vector<std::string>;

// Runs one small measurement; its only line of stdout, parsed.
nlohmann::json measure(Arguments arguments, const std::string& threads = "1") {
  for (const char* more : {"--pairs", "1", "--threads"}) arguments.push_back(more);
  arguments.push_back(threads);
  const Outcome outcome = run_program("polygrad_bench", arguments);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  REQUIRE(outcome.out == outcome.last_line() + "\n");
  CHECK(outcome.err != "");  // text for people
  return nlohmann::json::parse(outcome.out);
}

void check_positive(const nlohmann::json& line, const Arguments& keys) {
  for (const std::string& key : keys) {
    CAPTURE(key);
    REQUIRE(line.contains(key));
    CHECK(line[key].get<double>() > 0);
  }
}

// A pair of IDX files of noise: square grey images, labels 0 ... 9.
void write_noise(const std::string& folder, const std::string& part, std::uint32_t count, std::uint32_t image) {
  Generator generator(count);
  std::string pixels, labels;
  for (std::uint32_t i = 0; i < count * image * image; ++i) pixels += static_cast<char>(generator.integer(0, 256));
  for (std::uint32_t i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
  write_bytes(folder + "/" + part + "-images-idx3-ubyte", idx_bytes(8, {count, image, image}, pixels));
  write_bytes(folder + "/" + part + "-labels-idx1-ubyte", idx_bytes(8, {count}, labels));
}

void check_fails(const Arguments& arguments, int code, const std::string& text) {
  const Outcome outcome = run_program("polygrad_bench", arguments);
  CHECK(outcome.code == code);
  CHECK(outcome.out == "");
  CHECK_MESSAGE(outcome.error_line().find(text) != std::string::npos, outcome.err);
}

}  // namespace

TEST_CASE("gemm: a line with its ceiling, for each number of threads") {
  for (const char* threads : {"1", "2"}) {
    const nlohmann::json line = measure({"gemm", "--m", "100", "--k", "70", "--n", "50", "--trans-a"}, threads);
    CHECK(line["bench"] == "gemm");
    CHECK(line["threads"] == std::stoi(threads));
    CHECK((line["gemm"] == "onednn" || line["gemm"] == "eigen"));
    CHECK(line["trans_a"] == true);
    check_positive(line, {"gflops", "ceiling_gflops", "ratio"});
  }
}

TEST_CASE("gemm and vit_step in bf16") {
  if (!precision_obstacle(Precision::bf16).empty()) return skip("no bf16 units: this CPU, or no oneDNN in this build");
  const nlohmann::json gemm = measure({"gemm", "--m", "100", "--k", "64", "--n", "48", "--trans-b", "--dtype", "bf16"});
  CHECK(gemm["dtype"] == "bf16");
  check_positive(gemm, {"gflops", "ceiling_gflops", "ratio"});
  const nlohmann::json step = measure({"vit_step", "--model", "vit_tiny", "--image", "8", "--patch", "4", "--classes",
                                       "3", "--batch", "2", "--phi", "x3", "--precision", "bf16"});
  CHECK(step["precision"] == "bf16");
  check_positive(step, {"step_ms", "ratio", "loss"});
}

TEST_CASE("attention: times, memory and a small error, with and without padding") {
  for (const char* phi : {"x3", "softmax"}) {
    Arguments arguments = {"attention", "--phi",    phi,   "--path",     "tiled", "--batch",
                           "2",         "--tokens", "200", "--head-dim", "16"};
    for (const bool lengths : {false, true}) {
      if (lengths) arguments.insert(arguments.end(), {"--lengths", "200,31"});
      const nlohmann::json line = measure(arguments);
      check_positive(line, {"forward_ms", "backward_ms", "gflops", "ceiling_gflops", "ratio", "max_error"});
      CHECK(line["peak_extra_mib"].get<double>() >= 0);
      CHECK(line["max_error"].get<double>() < 1e-5);
      CHECK(line["path"] == "tiled");
      if (!lengths) continue;
      CHECK(line["work_share"].get<double>() == doctest::Approx((200.0 * 200 + 31 * 31) / (2 * 200 * 200)));
      CHECK(line["cost_share"].get<double>() > 0);
    }
  }
}

TEST_CASE("attention: forward alone") {
  const nlohmann::json line = measure({"attention", "--batch", "1", "--tokens", "300", "--forward-only"});
  CHECK(line["forward_only"] == true);
  check_positive(line, {"forward_ms", "gflops", "ratio", "max_error"});
  CHECK(line["backward_ms"].get<double>() < line["forward_ms"].get<double>());
  CHECK(line["max_error"].get<double>() < 1e-5);
}

TEST_CASE("on a GPU: the CPU's keys and losses, and its name; times by the device's clock") {
  // The tests' CUDA runtime: how it computes, not how fast.
  if (!exists(bin_dir() + "/host_polygrad_bench")) return skip("no GPU, and no programs with the tests' CUDA runtime");
  const auto there = [](Arguments arguments) {
    for (const char* more : {"--device", "cuda:0", "--ceiling", "16", "--pairs", "1"}) arguments.push_back(more);
    const Outcome outcome = run_program("host_polygrad_bench", arguments);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    const nlohmann::json line = nlohmann::json::parse(outcome.out);
    CHECK(line["device"] == "the CPU");
    CHECK(line["gemm"] == "cublaslt");
    return line;
  };
  const Arguments step = {"vit_step", "--image", "8",  "--patch", "8", "--depth",   "1", "--batch", "2", "--phi",
                          "x3",       "--scale", "16", "--steps", "3", "--classes", "4"};
  const nlohmann::json here = measure(step), gpu = there(step);
  for (const auto& [key, value] : here.items()) CHECK_MESSAGE(gpu.contains(key), key);
  CHECK(here["depth"] == 1);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(gpu["losses"][i].get<double>() == doctest::Approx(here["losses"][i].get<double>()).epsilon(1e-4));
  }
  Arguments plain = step;
  plain.push_back("--no-capture");
  const nlohmann::json uncaptured = there(plain);
  CHECK(gpu["capture"] == true);
  CHECK(uncaptured["capture"] == false);
  CHECK(uncaptured["losses"] == gpu["losses"]);
  check_positive(gpu, {"step_ms", "ceiling_gflops", "ratio", "peak_mib"});
  for (const char* precision : {"f32", "bf16", "f16"}) {
    const bool exact = std::string(precision) == "f32";
    const nlohmann::json gemm =
        there({"gemm", "--m", "20", "--k", "40", "--n", "8", "--trans-a", "--dtype", precision});
    CHECK(gemm["relative_error"].get<double>() < (exact ? 1e-6 : 1e-2));
    const nlohmann::json attention = there(
        {"attention", "--batch", "1", "--heads", "1", "--tokens", "40", "--head-dim", "32", "--precision", precision});
    CHECK(attention["precision"] == precision);
    check_positive(attention, {"forward_ms", "backward_ms", "peak_extra_mib"});
    CHECK(attention["max_error"].get<double>() < (exact ? 1e-5 : 3e-2));
  }
  const nlohmann::json op = there({"op", "--name", "gelu", "--shape", "6x8"});
  check_positive(op, {"ns_per_element", "copy_share", "backward_ns_per_element", "backward_copy_share"});
  const Outcome ladder = run_program("host_polygrad_bench", {"ladder", "--device", "cuda:0"});
  CHECK(ladder.code == 2);
  CHECK(ladder.error_line().find("[ladder] --device cuda:0") != std::string::npos);
}

TEST_CASE("vit_step: a training step of a small model") {
  for (const bool flag : {false, true}) {
    Arguments arguments = {"vit_step", "--model",   "vit_tiny", "--image",     "8",  "--patch",
                           "4",        "--classes", "3",        "--batch",     "2",  "--phi",
                           "x3",       "--scale",   "16",       "--precision", "f32"};
    if (flag) arguments.push_back("--no-shortcuts");
    const nlohmann::json line = measure(arguments);
    check_positive(line, {"step_ms", "images_per_s", "gflops", "ceiling_gflops", "ratio", "peak_mib", "loss"});
    CHECK(line["shortcuts"] == !flag);
  }
}

TEST_CASE("lra_step: a training step on whole and on padded sequences, of one tower and of two") {
  for (const char* task : {"listops", "retrieval"}) {
    const Arguments arguments = {"lra_step", "--task", task, "--batch", "2", "--tokens", "40", "--phi", "x3"};
    Arguments padded = arguments;
    padded.insert(padded.end(), {"--lengths", "40,3", "--attention-dropout", "0.1"});
    for (const Arguments& one : {arguments, padded}) {
      const nlohmann::json line = measure(one);
      check_positive(line, {"step_ms", "samples_per_s", "gflops", "ceiling_gflops", "ratio", "peak_mib", "loss"});
      CHECK(line["task"] == task);
      CHECK(line["tokens"] == 40);
    }
  }
  check_fails({"lra_step", "--task", "sums"}, 2, "lra_sums");
  check_fails({"lra_step", "--tokens", "8", "--lengths", "9"}, 2, "--lengths 9");
  check_fails({"lra_step", "--path", "linear", "--phi", "x", "--attention-dropout", "0.1"}, 2, "linear");
}

TEST_CASE("vit_step: from the third step on, nothing is asked of the system") {
  const nlohmann::json line = measure({"vit_step", "--image", "16", "--classes", "5", "--batch", "6", "--steps", "20"});
  CHECK(line["steps"].get<int>() >= 20);
  CHECK(line["allocator_misses_per_step"] == 0);
  CHECK(line["page_faults_per_step"].get<double>() < 200);
}

TEST_CASE("vit_step trains as vit_train does: the losses of the first ten steps are the same bits") {
  // 72 images, of which vit_train holds 6 out: 11 batches an epoch, in an order that the seed chooses.
  const TemporaryFolder folder;
  const std::string data = folder / "data";
  std::filesystem::create_directory(data);
  write_noise(data, "train", 72, 16);
  write_noise(data, "t10k", 6, 16);
  write_bytes(folder / "settings.json", R"({
    "model": {"name": "vit_tiny", "patch_size": 4, "num_classes": 12},
    "data": {"name": "idx"},
    "optimizer": {"name": "adamw", "lr": 1e-4, "weight_decay": 0.05},
    "schedule": {"name": "constant"},
    "train": {"batch_size": 6, "max_steps": 10, "log_every_steps": 1}
  })");
  const std::vector<std::pair<std::string, std::string>> cases = {{"x3", "f32"}, {"softmax", "f32"}, {"x3", "bf16"}};
  for (const auto& [phi, precision] : cases) {
    CAPTURE(phi);
    CAPTURE(precision);
    if (precision == "bf16" && !precision_obstacle(Precision::bf16).empty()) continue;
    const nlohmann::json line = measure({"vit_step", "--data", data, "--image", "16", "--patch", "4", "--classes", "12",
                                         "--batch", "6", "--phi", phi, "--precision", precision, "--steps", "10"});
    const std::string out = folder / (phi + "-" + precision);
    const Outcome outcome =
        run_program("vit_train", {"--config", folder / "settings.json", "--data", data, "--out", out, "--threads", "2",
                                  "--set", "attention.phi=" + phi, "--set", "train.precision=" + precision});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    std::vector<double> trained;
    for (const MetricsRow& row : read_metrics(out + "/metrics.jsonl")) {
      if (row.event() == "train") trained.push_back(row.number("loss"));
    }
    CHECK(trained.size() == 10);
    CHECK(line["losses"].get<std::vector<double>>() == trained);
  }
}

TEST_CASE("--turns: a pair for each line of stdin, then the medians") {
  const std::string program = bin_dir() + "/polygrad_bench gemm --m 8 --turns --quiet";
  const Outcome outcome = run_program("/bin/sh", {"-c", "printf 'turn\\nturn\\nend\\n' | " + program});
  CHECK(outcome.code == 0);
  std::istringstream lines(outcome.out);
  std::string line;
  for (int turn = 0; turn <= 2; ++turn) {  // 0: ready
    REQUIRE(std::getline(lines, line));
    const nlohmann::json pair = nlohmann::json::parse(line);
    CHECK(pair["turn"] == turn);
    check_positive(pair, {"seconds", "gflops", "ceiling_gflops", "ratio"});
  }
  REQUIRE(std::getline(lines, line));
  check_positive(nlohmann::json::parse(line), {"gflops", "ceiling_gflops", "ratio"});
  const Outcome none = run_program("/bin/sh", {"-c", program + " </dev/null"});
  CHECK(none.code == 2);
  CHECK(none.error_line().find("--turns") != std::string::npos);
}

TEST_CASE("vit_step --profile: tables for people beside the line") {
  const Outcome outcome =
      run_program("polygrad_bench", {"vit_step", "--model", "vit_tiny", "--image", "8", "--patch", "4", "--classes",
                                     "3", "--batch", "2", "--pairs", "1", "--profile"});
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out == outcome.last_line() + "\n");
  for (const char* text : {"attention_qkv", "backward", "optimizer", "blocks.*.attn", "ceiling"}) {
    CAPTURE(text);
    CHECK(outcome.err.find(text) != std::string::npos);
  }
}

TEST_CASE("op: nanoseconds for an element, and the share of a copy's speed") {
  const nlohmann::json line = measure({"op", "--name", "gelu", "--shape", "64x48"});
  check_positive(line, {"ns_per_element", "gbytes_per_s", "copy_share", "backward_ns_per_element",
                        "backward_gbytes_per_s", "backward_copy_share"});
  CHECK(line["family"] == "unary");
  CHECK(line["shape"] == nlohmann::json::array({64, 48}));
  const nlohmann::json update = measure({"op", "--name", "adamw_step", "--shape", "1000"});
  check_positive(update, {"ns_per_element", "gbytes_per_s", "copy_share"});
  CHECK_FALSE(update.contains("backward_ns_per_element"));
}

TEST_CASE("ops: a line for each, family by family") {
  const Outcome outcome = run_program("polygrad_bench", {"ops", "--shape", "2x3x8x8", "--pairs", "1", "--quiet"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  std::vector<std::string> families, names;
  std::istringstream lines(outcome.out);
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = nlohmann::json::parse(text);
    CHECK(line["shape"] == nlohmann::json::array({2, 3, 8, 8}));
    names.push_back(line["name"]);
    if (families.empty() || families.back() != line["family"]) families.push_back(line["family"]);
  }
  for (const char* name :
       {"exp", "gelu", "softmax", "layer_norm", "cross_entropy", "dropout", "residual_add", "adamw_step"}) {
    CHECK_MESSAGE(std::count(names.begin(), names.end(), name) == 1, name);
  }
  std::sort(families.begin(), families.end());
  CHECK_MESSAGE(std::adjacent_find(families.begin(), families.end()) == families.end(), "a family comes twice");
}

TEST_CASE("ladder: every rung agrees with the first") {
  for (const char* name : {"attention", "layer_norm"}) {
    CAPTURE(name);
    const Outcome outcome =
        run_program("polygrad_bench", {"ladder", "--name", name, "--pairs", "1", "--threads", "2", "--quiet"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    std::istringstream lines(outcome.out);
    int rungs = 0;
    for (std::string text; std::getline(lines, text); ++rungs) {
      const nlohmann::json line = nlohmann::json::parse(text);
      CHECK(line["name"] == name);
      CHECK(line["step"] == rungs + 1);
      CHECK(line["rung"] != "");
      CHECK(line["max_error"].get<double>() < 1e-5);
      check_positive(line, {"ms", "gflops", "ceiling_gflops", "ratio", "speedup"});
    }
    CHECK(rungs == 6);
  }
}

TEST_CASE("--quiet leaves stderr empty") {
  const Outcome outcome = run_program("polygrad_bench", {"gemm", "--m", "8", "--pairs", "1", "--quiet"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
}

TEST_CASE("wrong usage ends with code 2 and one line that says what") {
  check_fails({}, 2, "subcommand");
  check_fails({"gemm", "--m", "0"}, 2, "--m 0");
  check_fails({"gemm", "--m", "x"}, 2, "--m");
  check_fails({"gemm", "--dtype", "f16"}, 2, "--dtype f16");
  check_fails({"gemm", "--dtype", "half"}, 2, "--dtype half");
  check_fails({"gemm", "--threads", "0"}, 2, "--threads");
  check_fails({"attention", "--phi", "cube"}, 2, "unknown activation 'cube'");
  check_fails({"attention", "--path", "linear", "--phi", "x3"}, 2, "linear");
  check_fails({"attention", "--batch", "2", "--lengths", "1,2,3"}, 2, "--lengths");
  check_fails({"attention", "--scale", "12x"}, 2, "--scale 12x");
  check_fails({"attention", "--precision", "f16"}, 2, "--precision f16");
  check_fails({"vit_step", "--model", "vit_huge_indeed"}, 2, "vit_huge_indeed");
  check_fails({"vit_step", "--precision", "f16"}, 2, "--precision f16");
  check_fails({"vit_step", "--image", "0"}, 2, "--image 0");
  check_fails({"vit_step", "--data", "no/such/folder"}, 3, "no/such/folder");
  check_fails({"op", "--name", "gelo"}, 2, "--name gelo");
  check_fails({"op", "--shape", "3x"}, 2, "--shape 3x");
  check_fails({"ladder", "--name", "jacob"}, 2, "--name jacob");
}

TEST_CASE("bf16 with the provider eigen is exit 2") {
  setenv("POLYGRAD_GEMM", "eigen", 1);
  check_fails({"gemm", "--dtype", "bf16"}, 2, "--dtype bf16: bf16 products on the CPU are oneDNN's");
  check_fails({"vit_step", "--precision", "bf16"}, 2, "--precision bf16: bf16 products on the CPU are oneDNN's");
  unsetenv("POLYGRAD_GEMM");
}

TEST_CASE("a device that is not there ends with code 6") { check_fails({"gemm", "--device", "cuda:7"}, 6, "[device]"); }

TEST_CASE("help is grouped, and the version names the provider") {
  const Outcome help = run_program("polygrad_bench", {"gemm", "--help"});
  CHECK(help.code == 0);
  for (const char* text : {"Shape:", "How it is computed:", "--trans-a"})
    CHECK(help.out.find(text) != std::string::npos);
  CHECK(run_program("polygrad_bench", {"op", "--help"}).out.find("one of: neg exp") != std::string::npos);
  CHECK(run_program("polygrad_bench", {"vit_step", "--help"}).out.find("--no-shortcuts") != std::string::npos);
  const Outcome version = run_program("polygrad_bench", {"--version"});
  CHECK(version.code == 0);
  CHECK(version.out.find("eigen") != std::string::npos);
}
