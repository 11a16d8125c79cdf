// polygrad_bench from the command line: one JSON line with the promised keys, threads heard, exit codes.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

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
    }
  }
}

TEST_CASE("vit_step: a training step of a small model") {
  for (const bool flag : {false, true}) {
    Arguments arguments = {"vit_step", "--model",   "vit_tiny", "--image",     "8",  "--patch",
                           "4",        "--classes", "3",        "--batch",     "2",  "--phi",
                           "x3",       "--scale",   "16",       "--precision", "f32"};
    if (flag) arguments.push_back("--no-shortcuts");
    const nlohmann::json line = measure(arguments);
    check_positive(line, {"step_ms", "images_per_s", "gflops", "ceiling_gflops", "ratio", "peak_mib", "loss"});
    CHECK(line["shortcuts"] == false);  // the models have none
  }
}

TEST_CASE("op: nanoseconds for an element") {
  const nlohmann::json line = measure({"op", "--name", "gelu", "--shape", "64x48"});
  check_positive(line, {"ns_per_element", "backward_ns_per_element"});
  CHECK(line["shape"] == nlohmann::json::array({64, 48}));
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
  check_fails({"gemm", "--dtype", "bf16"}, 2, "--dtype bf16");
  check_fails({"gemm", "--threads", "0"}, 2, "--threads");
  check_fails({"attention", "--phi", "cube"}, 2, "unknown activation 'cube'");
  check_fails({"attention", "--path", "linear", "--phi", "x3"}, 2, "linear");
  check_fails({"attention", "--batch", "2", "--lengths", "1,2,3"}, 2, "--lengths");
  check_fails({"attention", "--scale", "12x"}, 2, "--scale 12x");
  check_fails({"vit_step", "--model", "vit_huge_indeed"}, 2, "vit_huge_indeed");
  check_fails({"vit_step", "--precision", "bf16"}, 2, "--precision bf16");
  check_fails({"op", "--name", "gelo"}, 2, "--name gelo");
  check_fails({"op", "--shape", "3x"}, 2, "--shape 3x");
}

TEST_CASE("a device that is not there ends with code 6") { check_fails({"gemm", "--device", "cuda:7"}, 6, "[device]"); }

TEST_CASE("help is grouped, and the version names the provider") {
  const Outcome help = run_program("polygrad_bench", {"gemm", "--help"});
  CHECK(help.code == 0);
  for (const char* text : {"Shape:", "How it is computed:", "--trans-a"})
    CHECK(help.out.find(text) != std::string::npos);
  CHECK(run_program("polygrad_bench", {"op", "--help"}).out.find("one of: neg exp tanh") != std::string::npos);
  CHECK(run_program("polygrad_bench", {"vit_step", "--help"}).out.find("this version has none") != std::string::npos);
  const Outcome version = run_program("polygrad_bench", {"--version"});
  CHECK(version.code == 0);
  CHECK(version.out.find("eigen") != std::string::npos);
}
