// inspect runs: where runs stand, by their folders alone.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "apps/training/run_folder.h"
#include "tests/cli/program.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

namespace fs = std::filesystem;

constexpr const char* kStart = R"({"event":"start","step":0,"params":10,"total_steps":40})"
                               "\n";
constexpr const char* kRows = R"({"event":"train","step":10,"epoch":1,"loss":1.5}
{"event":"eval","split":"val","step":10,"epoch":1,"loss":1.25,"top1":62.5,"count":8}
{"event":"train","step":20,"epoch":2,"loss":1.125}
{"event":"eval","split":"val","step":20,"epoch":2,"loss":null,"top1":75,"count":8}
)";

// `when`: seconds since the epoch at which it was last written.
void write_run(const std::string& folder, const std::string& rows, std::int64_t when) {
  fs::create_directories(folder);
  write_bytes(folder + "/config.json", "{}");
  write_bytes(folder + "/metrics.jsonl", rows);
  const timespec times[2] = {{when, 0}, {when, 0}};
  REQUIRE(utimensat(AT_FDCWD, (folder + "/metrics.jsonl").c_str(), times, 0) == 0);
}

std::string end(const std::string& status, const std::string& more = "") {
  return R"({"event":"end","status":")" + status + R"(","step":20,"best_top1":62.5,"seconds":7.5)" + more + "}\n";
}

// The lines of a text, each as its fields.
std::vector<std::vector<std::string>> fields_of(const std::string& tsv) {
  std::vector<std::vector<std::string>> lines;
  std::string field;
  for (const char c : tsv) {
    if (lines.empty() || field == "\n") lines.emplace_back(), field.clear();
    if (c == '\t' || c == '\n') {
      lines.back().push_back(field);
      field = c == '\n' ? "\n" : "";
    } else {
      field += c;
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("every kind of end, the newest first, in columns and as tsv") {
  const TemporaryFolder folder;
  const std::string runs = folder / "runs";
  const std::string rows = std::string(kStart) + kRows;
  write_run(runs + "/finished",
            rows +
                R"({"event":"eval","split":"test","step":10,"epoch":1,"loss":1,"top1":50})"
                "\n" +
                end("done"),
            1000000000);
  write_run(runs + "/sweep/diverging", rows + end("diverged", R"(,"why":"the loss\tis nan")"), 1000000100);
  write_run(runs + "/failing", rows + end("failed", R"(,"why":"no space left")"), 1000000200);
  write_run(runs + "/stopping", rows + end("stopped"), 1000000300);
  write_run(runs + "/killed", rows + end("stopped") + kStart, 1000000400);
  write_run(runs + "/working", rows, 1000000500);
  write_run(runs + "/young", "", 1000000600);
  write_run(runs + "/a/b/too-deep", rows, 1000000700);
  write_run(runs + "/.hidden", rows, 1000000800);
  write_bytes(runs + "/note.txt", "no folder");
  RunFolder lock(runs + "/working");
  lock.open();

  const Outcome tsv = run_program("inspect", {"runs", runs + "/", "--tsv"});
  CHECK(tsv.code == 0);
  CHECK(tsv.err == "");
  const auto lines = fields_of(tsv.out);
  REQUIRE(lines.size() == 8);
  CHECK(lines[0] == std::vector<std::string>{"run", "status", "step", "total_steps", "epoch", "best_top1", "best_step",
                                             "test_top1", "train_loss", "seconds", "written", "why"});
  CHECK(lines[1] == std::vector<std::string>{runs + "/young", "interrupted", "0", "", "0", "", "", "", "", "",
                                             "2001-09-09T01:56:40Z", ""});
  CHECK(lines[2] == std::vector<std::string>{runs + "/working", "running", "20", "40", "2", "62.5", "10", "", "1.125",
                                             "", "2001-09-09T01:55:00Z", ""});
  CHECK(lines[3][0] == runs + "/killed");
  CHECK(lines[3][1] == "interrupted");
  CHECK(lines[4][1] == "stopped");
  CHECK(lines[5][1] == "failed");
  CHECK(lines[5][11] == "no space left");
  CHECK(lines[6][0] == runs + "/sweep/diverging");
  CHECK(lines[6][11] == "the loss is nan");
  CHECK(lines[7] == std::vector<std::string>{runs + "/finished", "done", "20", "40", "2", "62.5", "10", "50", "1.125",
                                             "7.5", "2001-09-09T01:46:40Z", ""});

  setenv("TZ", "UTC", 1);
  const Outcome text = run_program("inspect", {"runs", runs, "--quiet"});
  unsetenv("TZ");
  CHECK(text.code == 0);
  for (const char* part : {"  20 / 40  2.00   62.50 % (step 10)  1.1250  2001-09-09 01:46  done\n",
                           "  2001-09-09 01:48  diverged at step 21\n", "  failed: no space left\n", "  running\n"}) {
    CHECK_MESSAGE(text.out.find(part) != std::string::npos, text.out);
  }
  std::set<std::size_t> columns;  // "written" stands under one another
  std::size_t begin = 0;
  while (begin < text.out.size()) {
    const std::string line = text.out.substr(begin, text.out.find('\n', begin) - begin);
    columns.insert(std::min(line.find("2001-"), line.find("written")));
    begin += line.size() + 1;
  }
  CHECK(columns.size() == 1);
}

TEST_CASE("damaged folders are listed with the reason, and the others too") {
  const TemporaryFolder folder;
  write_run(folder / "good", std::string(kStart) + kRows + end("done"), 1000000000);
  write_run(folder / "garbage", "no json\nat all\n", 1000000000);
  write_run(folder / "no-config", kStart, 1000000000);
  fs::remove(folder / "no-config/config.json");
  write_run(folder / "bad-config", kStart, 1000000000);
  write_bytes(folder / "bad-config/config.json", "{\"model\":");
  write_run(folder / "no-metrics", kStart, 1000000000);
  fs::remove(folder / "no-metrics/metrics.jsonl");
  fs::create_directories(folder / "folder-metrics/metrics.jsonl");
  write_run(folder / "odd-rows",
            R"({"event":"start","step":"x","total_steps":[1]})"
            "\n",
            1000000000);
  const Outcome outcome = run_program("inspect", {"runs", folder.path(), "--log-level", "error"});
  CAPTURE(outcome.out);
  CHECK(outcome.code == 0);
  CHECK(outcome.err == "");
  const auto listed = [&](const std::string& name, const std::string& reason) {
    const std::size_t at = outcome.out.find(folder / name + " ");
    REQUIRE(at != std::string::npos);
    const std::string line = outcome.out.substr(at, outcome.out.find('\n', at) - at);
    CHECK_MESSAGE(line.find(reason) != std::string::npos, line);
  };
  listed("good", "done");
  listed("garbage", "damaged: [run] no row of");
  listed("no-config", "damaged: [run] " + (folder / "no-config") + " has no config.json");
  listed("bad-config", "damaged: [json] " + (folder / "bad-config/config.json:1"));
  listed("no-metrics", "has no metrics.jsonl");
  listed("folder-metrics", "damaged: ");
  listed("odd-rows", "interrupted");
}

TEST_CASE("folders that are a run, empty, or not there; wrong usage") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  write_run(run, std::string(kStart) + kRows + end("done"), 1000000000);
  fs::create_directory(folder / "empty");
  const Outcome itself = run_program("inspect", {"runs", run});
  CHECK(itself.code == 0);
  CHECK(itself.out.find(run + " ") != std::string::npos);
  // Given twice, by two names, it is listed once.
  CHECK(run_program("inspect", {"runs", run, folder.path(), run + "/"}).out == itself.out);
  const Outcome empty = run_program("inspect", {"runs", folder / "empty"});
  CHECK(empty.code == 0);
  CHECK(empty.out == "");
  CHECK(empty.err == "there is no run in " + (folder / "empty") + "\n");
  const Outcome missing = run_program("inspect", {"runs", folder / "none", run});
  CHECK(missing.code == 5);
  CHECK(missing.out.find(run + " ") != std::string::npos);
  CHECK(missing.error_line().find("there is no folder " + (folder / "none")) != std::string::npos);
  CHECK(run_program("inspect", {"runs", run, "--stats"}).code == 2);
  CHECK(run_program("inspect", {"--model", "vit_tiny", "runs"}).code == 2);
  const Outcome by_default =
      run_program("/bin/sh", {"-c", "cd " + folder.path() + " && " + bin_dir() + "/inspect runs"});
  CHECK(by_default.code == 5);
  CHECK(by_default.error_line().find("there is no folder runs") != std::string::npos);
}
