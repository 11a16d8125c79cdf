// metrics.jsonl, metrics.csv and norms.csv: what is in them after a run, a kill, a resume, and on a full disk.
#include "apps/training/metrics_log.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>

#include "engine/error.h"
#include "engine/log.h"
#include "tests/support/isolation.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

MetricsRow train_row(std::int64_t step) {
  return MetricsRow("train").add("step", step).add("epoch", 0.5).add("loss", 2.25).add("lr", 1e-3);
}

void write_steps(MetricsLog& log, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) {
    log.write_norms(step, 0.5, 1, {{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, kNan}});
    log.write(MetricsRow("norms").add("step", step).add("layer", 1));
    log.write(train_row(step));
  }
}

std::vector<std::int64_t> train_steps(const std::string& path) {
  std::vector<std::int64_t> steps;
  for (const MetricsRow& row : read_metrics(path)) {
    if (row.event() == "train") steps.push_back(row.step());
  }
  return steps;
}

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace

TEST_CASE("a row is in the file when write returns, its keys in order") {
  const TemporaryFolder folder;
  MetricsLog log(folder.path(), std::nullopt);
  log.write(MetricsRow("start").add("step", 0).add("device", "cpu").add("seed", std::uint64_t{18446744073709551615u}));
  CHECK(read_bytes(folder / "metrics.jsonl") ==
        "{\"event\":\"start\",\"step\":0,\"device\":\"cpu\",\"seed\":18446744073709551615}\n");
  log.write(train_row(5));
  CHECK(read_bytes(folder / "metrics.jsonl").substr(70) ==
        "{\"event\":\"train\",\"step\":5,\"epoch\":0.5,\"loss\":2.25,\"lr\":0.001}\n");
  CHECK(log.trouble().empty());
}

TEST_CASE("numbers that are not finite are null, and read back as NaN") {
  const TemporaryFolder folder;
  MetricsLog log(folder.path(), std::nullopt);
  log.write(MetricsRow("train").add("step", 1).add("loss", kNan).add("lr", std::numeric_limits<double>::infinity()));
  CHECK(read_bytes(folder / "metrics.jsonl") == "{\"event\":\"train\",\"step\":1,\"loss\":null,\"lr\":null}\n");
  const auto rows = read_metrics(folder / "metrics.jsonl");
  REQUIRE(rows.size() == 1);
  CHECK(std::isnan(rows[0].number("loss")));
  CHECK(std::isnan(rows[0].number("absent")));
  CHECK(rows[0].step() == 1);
}

TEST_CASE("the CSV files have fixed columns; what a row lacks is empty") {
  const TemporaryFolder folder;
  MetricsLog log(folder.path(), std::nullopt);
  log.write(train_row(5).add("grad_norm", kNan).add("unknown", 3));
  log.write(MetricsRow("eval").add("split", "val").add("step", 5).add("top1", 87.5).add("count", 5000));
  log.write(MetricsRow("norms").add("step", 5));
  CHECK(read_bytes(folder / "metrics.csv") ==
        "event,split,step,epoch,loss,lr,grad_norm,top1,top5,count,samples_per_s,data_wait,status,best_top1,seconds\n"
        "train,,5,0.5,2.25,0.001,,,,,,,,,\n"
        "eval,val,5,,,,,87.5,,5000,,,,,\n");
  log.write_norms(5, 0.5, 2, {{1, 2, 3, 4, 5, 6}, {0.5, 0.25, kNan, 1, 1, 1}});
  CHECK(read_bytes(folder / "norms.csv") ==
        "step,epoch,layer,head,attention,jacobian_s,jacobian_s_sq,jacobian_q,jacobian_q_sq,jacobian_k\n"
        "5,0.5,2,0,1,2,3,4,5,6\n"
        "5,0.5,2,1,0.5,0.25,,1,1,1\n");
}

TEST_CASE("a resume drops later steps from all three files, and each step is there once") {
  const TemporaryFolder whole, cut;
  {
    MetricsLog log(whole.path(), std::nullopt);
    write_steps(log, 1, 12);
  }
  {
    MetricsLog log(cut.path(), std::nullopt);
    write_steps(log, 1, 9);  // the last checkpoint was step 6's
  }
  {
    MetricsLog log(cut.path(), 6);
    write_steps(log, 7, 12);
  }
  for (const char* file : {"metrics.jsonl", "metrics.csv", "norms.csv"}) {
    CHECK_MESSAGE(read_bytes(cut / file) == read_bytes(whole / file), file);
  }
  CHECK(train_steps(cut / "metrics.jsonl").size() == 12);
}

TEST_CASE("rows that the resume writes again are dropped, of its own step alone") {
  const TemporaryFolder whole, cut;
  const auto eval = [](std::int64_t step) { return MetricsRow("eval").add("split", "val").add("step", step); };
  for (const TemporaryFolder* folder : {&whole, &cut}) {
    MetricsLog log(folder->path(), std::nullopt);
    write_steps(log, 1, 1);
    log.write(eval(1));
    write_steps(log, 2, 2);
    log.write(eval(2));
  }
  { const MetricsLog log(cut.path(), 2, {"eval"}); }
  CHECK(read_bytes(cut / "norms.csv") == read_bytes(whole / "norms.csv"));
  auto rows = read_metrics(cut / "metrics.jsonl");
  REQUIRE(rows.size() == 5);
  CHECK(rows[2].event() == "eval");
  CHECK(rows[4].event() == "train");
  { const MetricsLog log(cut.path(), 2, {"norms", "eval"}); }
  rows = read_metrics(cut / "metrics.jsonl");
  CHECK(rows.size() == 4);
  CHECK(read_bytes(cut / "norms.csv").find("\n2,") == std::string::npos);
  CHECK(read_bytes(cut / "norms.csv").find("\n1,") != std::string::npos);
}

TEST_CASE("cut at any byte, as a kill leaves it, a resume repairs the files") {
  const TemporaryFolder whole;
  {
    MetricsLog log(whole.path(), std::nullopt);
    write_steps(log, 1, 4);
  }
  const std::string jsonl = read_bytes(whole / "metrics.jsonl"), norms = read_bytes(whole / "norms.csv");
  const std::string csv = read_bytes(whole / "metrics.csv");
  // Steps 1 and 2 are complete before the checkpoint of step 2; the cut falls anywhere behind them.
  const std::size_t safe_jsonl = jsonl.find("\"step\":3") - 17, safe_norms = norms.find("\n3,") + 1;
  for (std::size_t lost = 0; lost < jsonl.size() - safe_jsonl; lost += 3) {
    const TemporaryFolder folder;
    write_bytes(folder / "metrics.jsonl", jsonl.substr(0, jsonl.size() - lost));
    write_bytes(folder / "norms.csv",
                norms.substr(0, std::max(norms.size() - std::min(lost, norms.size()), safe_norms)));
    write_bytes(folder / "metrics.csv", csv.substr(0, csv.size() / 2));
    MetricsLog log(folder.path(), 2);
    write_steps(log, 3, 4);
    CHECK(read_bytes(folder / "metrics.jsonl") == jsonl);
    CHECK(read_bytes(folder / "metrics.csv") == csv);
    CHECK(read_bytes(folder / "norms.csv") == norms);
  }
}

TEST_CASE("a damaged line is left out by reader and resume; rows that are no steps stay") {
  const TemporaryFolder folder;
  write_bytes(folder / "metrics.jsonl",
              "{\"event\":\"start\",\"step\":0}\n{\"event\":\"train\",\"st\n\n[1]\n{\"step\":1}\n"
              "{\"event\":\"train\",\"step\":1,\"loss\":null}\n{\"event\":\"end\",\"status\":\"stopped\",\"step\":1}\n{"
              "\"event\"");
  CHECK(read_metrics(folder / "metrics.jsonl").size() == 3);
  const MetricsLog log(folder.path(), 1);
  CHECK(read_bytes(folder / "metrics.jsonl") ==
        "{\"event\":\"start\",\"step\":0}\n{\"event\":\"train\",\"step\":1,\"loss\":null}\n"
        "{\"event\":\"end\",\"status\":\"stopped\",\"step\":1}\n");
}

TEST_CASE("a run that goes on takes its look at the test images again: the old row is dropped") {
  const TemporaryFolder folder;
  {
    MetricsLog log(folder.path(), std::nullopt);
    log.write(MetricsRow("eval").add("split", "val").add("step", 2).add("top1", 80.0));
    log.write(MetricsRow("eval").add("split", "test").add("step", 2).add("top1", 79.0));
  }
  const MetricsLog log(folder.path(), 2);
  const auto rows = read_metrics(folder / "metrics.jsonl");
  REQUIRE(rows.size() == 1);
  CHECK(rows[0].number("top1") == 80);
  CHECK(count_lines(read_bytes(folder / "metrics.csv")) == 2);
}

TEST_CASE("a fresh start empties the files of a run that never reached a checkpoint") {
  const TemporaryFolder folder;
  {
    MetricsLog log(folder.path(), std::nullopt);
    write_steps(log, 0, 3);
  }
  const MetricsLog log(folder.path(), std::nullopt);
  CHECK(read_bytes(folder / "metrics.jsonl").empty());
  CHECK(count_lines(read_bytes(folder / "metrics.csv")) == 1);
  CHECK(count_lines(read_bytes(folder / "norms.csv")) == 1);
}

TEST_CASE("a disk that fills up ends nothing: complete lines only, and the rest when there is room") {
  const TemporaryFolder folder;
  const int code = testing::run_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = {};
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t all = limit.rlim_cur;
    MetricsLog log(folder.path(), std::nullopt);
    limit.rlim_cur = 1000;  // each file may have 1000 bytes
    setrlimit(RLIMIT_FSIZE, &limit);
    int messages = 0;
    set_log_sink([&](LogLevel, std::string_view) { ++messages; });
    for (std::int64_t step = 1; step <= 40; ++step) log.write(train_row(step));
    set_log_sink({});
    if (messages != 1) return 5;  // not one a row
    if (log.trouble().find("metrics.") == std::string::npos) return 1;
    const std::string full = read_bytes(folder / "metrics.jsonl");
    if (full.size() > 1000 || full.back() != '\n' || read_metrics(folder / "metrics.jsonl").size() < 10) return 2;
    limit.rlim_cur = all;
    setrlimit(RLIMIT_FSIZE, &limit);
    log.write(train_row(41));
    if (!log.trouble().empty()) return 3;
    return train_steps(folder / "metrics.jsonl").size() == 41 ? 0 : 4;
  });
  CHECK(code == 0);
  CHECK(count_lines(read_bytes(folder / "metrics.csv")) == 42);
}

TEST_CASE("files that can't be opened are an IoError; a log without a folder writes nowhere") {
  const TemporaryFolder folder;
  CHECK_THROWS_AS(MetricsLog(folder / "none", std::nullopt), IoError);
  CHECK_THROWS_AS(read_metrics(folder / "none"), IoError);
  MetricsLog nowhere;
  nowhere.write(train_row(1));
  nowhere.write_norms(1, 0, 1, {{}});
  nowhere.sync();
  CHECK(nowhere.trouble().empty());
}
