// lra_train as its users meet it: what it asks for, generated data, short runs of each task, an evaluation elsewhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "apps/training/metrics_log.h"
#include "data/decode.h"
#include "tests/cli/program.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

using Arguments = std::vector<std::string>;

Outcome train(const Arguments& arguments) { return run_program("lra_train", arguments); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void generate(const std::string& task, const std::string& folder, const std::string& count) {
  const Outcome outcome = train({"--task", task, "--generate", folder, "--count", count, "--set", "seed=7", "--quiet"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
}

void make_reviews(const std::string& root, int each) {
  for (const char* side : {"train/neg", "train/pos", "test/neg", "test/pos"}) {
    std::filesystem::create_directories(root + "/" + side);
    for (int i = 0; i < each; ++i) {
      const bool good = contains(side, "pos");
      write_bytes(root + "/" + side + "/" + std::to_string(i) + "_1.txt",
                  std::string(static_cast<std::size_t>(20 + i), good ? '!' : '?'));
    }
  }
}

void make_pictures(const std::string& root) {
  for (const char* name : {"data_batch_1.bin", "test_batch.bin"}) {
    std::string bytes;
    for (int i = 0; i < 40; ++i) {
      bytes += static_cast<char>(i % 10);
      bytes += std::string(3072, static_cast<char>(20 * (i % 10)));
    }
    write_bytes(root + "/" + name, bytes);
  }
}

// By path: class and probability of a predictions.csv.
std::map<std::string, std::string> predictions_of(const std::string& file) {
  std::map<std::string, std::string> result;
  const std::string text = read_bytes(file);
  for (std::size_t begin = text.find('\n') + 1; begin < text.size();) {
    const std::size_t end = text.find('\n', begin), comma = text.find(',', begin);
    result[text.substr(begin, comma - begin)] = text.substr(comma, end - comma);
    begin = end + 1;
  }
  return result;
}

}  // namespace

TEST_CASE("without a task, with a wrong one, without data: one line, and no folder") {
  struct Case {
    Arguments arguments;
    int code;
    Arguments says;
  };
  const TemporaryFolder folder;
  const std::string out = folder / "run";
  const Case cases[] = {
      {{}, 2, {"--task", "listops, text, retrieval, image, pathfinder"}},
      {{"--task", "lists"}, 2, {"lists", "pathfinder"}},
      {{"--task", "text", "--preset", "paper"}, 2, {"paper", "default or reference"}},
      {{"--task", "listops"}, 3, {"lra_train --task listops --generate DIR"}},
      {{"--task", "listops", "--data", folder / "none"}, 3, {folder / "none", "--generate DIR"}},
      {{"--task", "pathfinder"}, 3, {"lra_train --task pathfinder --generate DIR"}},
      {{"--task", "text"}, 3, {"Large Movie Review"}},
      {{"--task", "text", "--generate", folder / "x"}, 2, {"no generator"}},
      {{"--task", "listops", "--count", "3"}, 2, {"--generate"}},
      {{"--task", "listops", "--generate", folder / "x", "--count", "-5"}, 2, {"--count", "at least 1, got '-5'"}},
      {{"--task", "listops", "--generate", folder / "x", "--count", "1e5"}, 2, {"--count", "whole number"}},
      {{"--task", "listops", "--generate", folder / "x", "--count", "3"}, 2, {"at least 50"}},
      {{"--task", "listops", "--set", "augment.mixup=1"}, 2, {"augment.mixup"}},
      {{"--task", "listops", "--set", "attention.phi=x", "--set", "attention.path=linear", "--preset", "reference"},
       3,
       {"--generate"}},
  };
  for (const Case& c : cases) {
    Arguments arguments = c.arguments;
    arguments.insert(arguments.end(), {"--out", out});
    const Outcome outcome = train(arguments);
    CAPTURE(outcome.err);
    CHECK(outcome.code == c.code);
    for (const std::string& text : c.says) CHECK(contains(outcome.error_line(), text));
    CHECK(!exists(out));
  }
}

TEST_CASE("--help and --print-schedule need no data") {
  const Outcome help = train({"--help"});
  CHECK(help.code == 0);
  for (const char* flag : {"--task", "--preset", "--generate", "--count", "--overfit", "--eval"}) {
    CHECK(contains(help.out, flag));
  }
  const Outcome schedule = train({"--task", "listops", "--print-schedule"});
  CHECK(schedule.code == 0);
  CHECK(contains(schedule.out, "4e-06"));
  CHECK(!contains(run_program("vit_train", {"--help"}).out, "--task"));
}

TEST_CASE("generated data are not overwritten, and the same for any number of threads") {
  const TemporaryFolder folder;
  // What a killed generation left behind goes.
  std::filesystem::create_directories(folder / "lists");
  const std::string stale = folder / "lists/basic_train.tsv.tmp-99999999-0";
  write_bytes(stale, "Source\tTarget\n");
  generate("listops", folder / "lists", "50");
  CHECK(!exists(stale));
  CHECK(exists(folder / "lists/basic_test.tsv"));
  std::filesystem::remove(folder / "lists/basic_train.tsv");  // the other two would be lost
  CHECK(train({"--task", "listops", "--generate", folder / "lists", "--count", "50"}).code == 2);
  generate("pathfinder", folder / "a", "20");
  CHECK(train({"--task", "pathfinder", "--generate", folder / "a", "--count", "20"}).code == 2);
  CHECK(train({"--task", "pathfinder", "--generate", folder / "b", "--count", "20", "--set", "seed=7", "--threads", "1",
               "--quiet"})
            .code == 0);
  const std::string picture = "/pathfinder32/curv_contour_length_14/imgs/0/sample_19.png";
  CHECK(read_bytes(folder / "a" + picture) == read_bytes(folder / "b" + picture));
  CHECK(train({"--task", "pathfinder", "--data", folder / "a", "--contact-sheet", folder / "sheet.png"}).code == 0);
  const Tensor sheet = read_image(folder / "sheet.png");
  CHECK(sheet.size(2) == 8 * (5 * 32 + 6) + 6);
  const Outcome check = train({"--task", "pathfinder", "--data", folder / "a", "--check-data"});
  CHECK(check.code == 0);
  CHECK(contains(check.out, "train: 16 sequences of 2 classes"));
  CHECK(contains(check.out, "can't be used: 0 of 20"));
  const Outcome texts = train({"--task", "text", "--data", folder / "none", "--contact-sheet", folder / "sheet.png"});
  CHECK(texts.code == 3);
}

TEST_CASE("each task runs: a few steps, an evaluation of every sample, the report") {
  const TemporaryFolder folder;
  generate("listops", folder.path(), "100");
  generate("retrieval", folder.path(), "60");
  generate("pathfinder", folder.path(), "60");
  make_reviews(folder.path(), 20);
  make_pictures(folder.path());
  const std::map<std::string, int> test_samples = {
      {"listops", 2}, {"text", 40}, {"retrieval", 6}, {"image", 40}, {"pathfinder", 6}};
  for (const auto& [task, samples] : test_samples) {
    CAPTURE(task);
    const std::string out = folder / ("run_" + task);
    const Outcome outcome = train({"--task", task, "--data", folder.path(), "--out", out, "--set", "train.max_steps=2",
                                   "--set", "train.batch_size=4", "--set", "train.log_every_steps=1"});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(contains(outcome.err, "train"));
    CHECK(contains(outcome.err, "phi x3, divisor 14"));
    int train_rows = 0;
    for (const MetricsRow& row : read_metrics(out + "/metrics.jsonl")) {
      train_rows += row.event() == "train";
      if (row.event() == "eval" && row.json().find("split")->as_text() == "test") CHECK(row.number("count") == samples);
    }
    CHECK(train_rows == 2);
    const Outcome again = train({"--resume", out});  // knows its task
    CHECK(again.code == 0);
    CHECK(contains(again.out, "this run is finished: 2 steps"));
  }
}

TEST_CASE("--predict: a picture gets what an evaluation says of it; a model of texts takes none") {
  const TemporaryFolder folder;
  generate("pathfinder", folder.path(), "30");
  generate("listops", folder.path(), "100");
  for (const char* task : {"pathfinder", "listops"}) {
    const Outcome outcome = train({"--task", task, "--data", folder.path(), "--out", folder / task, "--quiet", "--set",
                                   "train.max_steps=1", "--set", "train.batch_size=4"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  }
  REQUIRE(train({"--eval", folder / "pathfinder", "--out", folder / "eval", "--quiet"}).code == 0);
  const auto predicted = predictions_of(folder / "eval/predictions.csv");
  REQUIRE(predicted.size() == 3);
  for (const auto& [path, said] : predicted) {  // ",label,class,probability"
    const Outcome outcome = train({"--predict", path, "--checkpoint", folder / "pathfinder"});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    const std::size_t at = said.find(',', 1) + 1, comma = said.find(',', at);
    const std::string name = said.substr(at, comma - at);
    const double probability = std::stod(said.substr(comma + 1));
    const std::string first = outcome.out.substr(outcome.out.find('\n') + 1);
    CHECK(std::stod(first) == doctest::Approx(100 * probability).epsilon(1e-3));
    CHECK(first.substr(0, first.find('\n')).ends_with("  " + name));
  }
  write_bytes(folder / "large.ppm", "P6 2 2 255 " + std::string(12, 'x'));
  const Outcome large = train({"--predict", folder / "large.ppm", "--checkpoint", folder / "pathfinder"});
  CHECK(large.code == 3);
  CHECK(contains(large.error_line(), "large.ppm: 2 x 2 pixels; expected 32 x 32"));
  const Outcome text = train({"--predict", folder / "basic_test.tsv", "--checkpoint", folder / "listops"});
  CHECK(text.code == 2);
  CHECK(contains(text.error_line(), "lra_listops reads texts"));
}

TEST_CASE("preset reference names its habits, and φ = x takes the tiled path there, the linear one by default") {
  const TemporaryFolder folder;
  make_pictures(folder.path());
  const auto report = [&](const std::string& preset) {
    return train({"--task", "image", "--preset", preset, "--data", folder.path(), "--set", "attention.phi=x", "--set",
                  "train.max_steps=1", "--set", "train.batch_size=4", "--out", folder / preset})
        .err;
  };
  const std::string reference = report("reference"), plain = report("default");
  for (const char* habit : {"mask_zero_pixels", "pool_over_padding", "drop_last", "cycle_momentum", "dropout acts"}) {
    CHECK(contains(reference, habit));
  }
  CHECK(contains(reference, "\nreference  "));
  CHECK(!contains(plain, "\nreference  "));
  CHECK(contains(reference, "path tiled"));
  CHECK(contains(plain, "path linear"));
}

TEST_CASE("a checkpoint evaluated elsewhere: the training file moved away, the rows in another order") {
  const TemporaryFolder folder;
  generate("listops", folder / "data", "600");
  const std::string out = folder / "run";
  REQUIRE(train({"--task", "listops", "--data", folder / "data", "--out", out, "--set", "train.max_steps=3", "--set",
                 "train.batch_size=4", "--quiet"})
              .code == 0);
  REQUIRE(train({"--eval", out, "--out", folder / "first", "--quiet"}).code == 0);
  // Into another folder: the test rows turned round, and nothing else.
  const std::string rows = read_bytes(folder / "data/basic_test.tsv");
  std::vector<std::string> lines;
  for (std::size_t begin = rows.find('\n') + 1; begin < rows.size();) {
    const std::size_t end = rows.find('\n', begin) + 1;
    lines.push_back(rows.substr(begin, end - begin));
    begin = end;
  }
  REQUIRE(lines.size() == 12);
  std::reverse(lines.begin(), lines.end());
  std::filesystem::create_directories(folder / "other");
  std::string turned = "Source\tTarget\n";
  for (const std::string& line : lines) turned += line;
  write_bytes(folder / "other/basic_test.tsv", turned);
  const Outcome second = train({"--eval", out, "--data", folder / "other", "--out", folder / "second", "--quiet"});
  CHECK(second.code == 0);
  CHECK(contains(second.last_line(), "\"count\":12"));
  const auto a = predictions_of(folder / "first/predictions.csv"),
             b = predictions_of(folder / "second/predictions.csv");
  REQUIRE(a.size() == 12);
  for (int i = 0; i < 12; ++i) {
    const std::string here = (folder / "data/basic_test.tsv:") + std::to_string(i + 2);
    const std::string there = (folder / "other/basic_test.tsv:") + std::to_string(13 - i);
    REQUIRE(a.count(here) == 1);
    REQUIRE(b.count(there) == 1);
    CHECK(a.at(here) == b.at(there));
  }
}

TEST_CASE("--overfit gets there on reviews and pictures") {
  const TemporaryFolder folder;
  make_reviews(folder.path(), 12);
  make_pictures(folder.path());
  for (const char* task : {"text", "image"}) {
    CAPTURE(task);
    const Outcome outcome = train({"--task", task, "--data", folder.path(), "--overfit", "8", "--out",
                                   folder / (std::string("run_") + task), "--set", "optimizer.lr=1e-3"});
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(contains(outcome.out, "val top-1 100.00 %"));
  }
}
