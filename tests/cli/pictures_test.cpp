// vit_train on pictures: check, look, train, evaluate, predict, as a user types it.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "apps/training/metrics_log.h"
#include "data/decode.h"
#include "tests/cli/program.h"
#include "tests/data/picture_folder.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

using Arguments = std::vector<std::string>;

Outcome train(const Arguments& arguments) { return run_program("vit_train", arguments); }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Arguments small(const std::string& root, const Arguments& more) {
  Arguments arguments = {"--config", "image_folder",        "--data",    root,
                         "--set",    "model.image_size=16", "--set",     "model.patch_size=8",
                         "--set",    "model.embed_dim=24",  "--set",     "model.depth=1",
                         "--set",    "train.batch_size=8",  "--set",     "train.accumulate=1",
                         "--set",    "train.epochs=2",      "--set",     "schedule.warmup_epochs=0",
                         "--set",    "data.workers=1",      "--threads", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace

TEST_CASE("a folder of pictures: looked at, trained on, evaluated, asked") {
  const TemporaryFolder folder;
  for (const char* part : {"train", "val"}) {
    for (int kind = 0; kind < 3; ++kind)
      write_class(folder / ("set/" + std::string(part) + "/kind " + std::to_string(kind)), kind, 8);
  }
  write_bytes(folder / "set/train/.DS_Store", "x");
  write_bytes(folder / "set/train/kind 0/notes.txt", "x");
  const Outcome check = train(small(folder / "set", {"--check-data"}));
  CHECK(check.code == 0);
  for (const char* text : {"kind 2", "train: 24 pictures of 3 classes, 8 to 8 a class", "can't be used: 0 of 48",
                           "foreign files: 1; hidden entries passed over: 1", "all 8 x 8"}) {
    CHECK_MESSAGE(contains(check.out, text), check.out);
  }
  const Outcome sheet = train(small(folder / "set", {"--contact-sheet", folder / "sheet.png"}));
  CHECK(sheet.code == 0);
  CHECK(read_image(folder / "sheet.png").size(2) > 700);
  CHECK_FALSE(exists("runs"));

  const Outcome run = train(small(folder / "set", {"--out", folder / "run"}));
  REQUIRE_MESSAGE(run.code == 0, run.err);
  CHECK(contains(run.err, "left out: 1 hidden entries, 1 files that are no pictures"));
  const Outcome eval =
      train({"--eval", folder / "run/checkpoints/latest", "--data", folder / "set/val", "--out", folder / "eval"});
  REQUIRE_MESSAGE(eval.code == 0, eval.err);
  CHECK(contains(eval.last_line(), "\"count\":24"));
  for (const char* file : {"predictions.csv", "per_class.csv", "confusion.csv", "confusion.png"}) {
    CHECK(exists(folder / ("eval/" + std::string(file))));
  }
  const std::string picture = folder / "set/val/kind 1/3.png";
  const Outcome guess = train({"--predict", picture, folder / "set/val/kind 2/0.png", "--checkpoint", folder / "run"});
  REQUIRE_MESSAGE(guess.code == 0, guess.err);
  CHECK(guess.out.rfind(picture + "\n", 0) == 0);
  CHECK(std::count(guess.out.begin(), guess.out.end(), '\n') == 8);  // a path and three classes each
  CHECK(contains(guess.out, " %  kind 1\n"));
  CHECK(train({"--predict", picture}).code == 2);
  CHECK(train({"--eval", folder / "run", "--check-data"}).code == 2);
  CHECK(train({"--predict", folder / "none.jpg", "--checkpoint", folder / "run"}).code == 3);
  CHECK(train({"--predict", picture, "--checkpoint", folder / "none"}).code == 5);
}

TEST_CASE("oddities: one line each, exit 3 where nothing else is right, and no run folder") {
  const TemporaryFolder folder;
  write_class(folder / "set/train/a", 0, 4);
  write_class(folder / "set/train/b", 1, 4);
  write_class(folder / "set/val/a", 0, 2);
  write_class(folder / "set/val/b", 1, 2);
  std::filesystem::create_directories(folder / "set/train/empty");
  std::filesystem::create_directory_symlink("..", folder / "set/train/a/round");
  std::filesystem::create_symlink("gone.png", folder / "set/train/a/unreadable.png");
  for (const char* name : {"set/train/.DS_Store", "set/train/a/._x.jpg", "set/train/Thumbs.db"})
    write_bytes(folder / name, "x");
  write_bytes(folder / "set/train/b/zero.jpg", "");
  const Outcome check = train(small(folder / "set", {"--check-data"}));
  CHECK(check.code == 3);
  for (const char* text : {"train/a/round: a link to a folder above itself; left out",
                           "train/empty: a class without pictures", "unreadable.png: unreadable: No such file",
                           "zero.jpg: empty: the file has no bytes", "hidden entries passed over: 3"}) {
    CHECK_MESSAGE(contains(check.out, text), check.out);
  }
  CHECK(contains(check.error_line(), "2 of 14 pictures can't be used"));
  const Outcome stopped = train(small(folder / "set", {"--out", folder / "run"}));
  CHECK(stopped.code == 3);
  CHECK((contains(stopped.error_line(), "unreadable.png: unreadable") ||
         contains(stopped.error_line(), "zero.jpg: empty")));
  const Outcome skipped = train(small(folder / "set", {"--out", folder / "run2", "--set", "data.on_bad_image=skip"}));
  CHECK_MESSAGE(skipped.code == 0, skipped.err);
  CHECK(contains(skipped.err, "2 training pictures could not be used"));
  CHECK(train(small(folder / "set", {"--check-data", "--set", "data.on_bad_image=skip"})).code == 0);

  write_class(folder / "set/val/unknown", 2, 1);
  const Outcome unknown = train(small(folder / "set", {"--out", folder / "run3"}));
  CHECK(unknown.code == 3);
  CHECK(contains(unknown.error_line(), "the class 'unknown' (1 pictures) is none of the 3 classes"));
  CHECK_FALSE(exists(folder / "run3"));
}

TEST_CASE("Tiny-ImageNet in its own layout: a first loss at chance, and each picture's class in predictions.csv") {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string root = std::string(data == nullptr ? "" : data) + "/tiny-imagenet-200";
  if (!exists(root + "/train") || !exists(root + "/val/val_annotations.txt")) {
    return skip("sample data missing: no folder tiny-imagenet-200 in POLYGRAD_TEST_DATA");
  }
  const TemporaryFolder folder;
  const Outcome run = train({"--config", "tiny_imagenet", "--data", root, "--set", "model.patch_size=32", "--set",
                             "train.max_steps=2", "--set", "train.batch_size=32", "--set", "train.log_every_steps=1",
                             "--set", "data.limit_val=20", "--out", folder / "run"});
  REQUIRE_MESSAGE(run.code == 0, run.err);
  std::vector<double> losses;
  for (const MetricsRow& row : read_metrics(folder / "run/metrics.jsonl")) {
    if (row.event() == "train") losses.push_back(row.number("loss"));
    if (row.event() == "start") CHECK(row.number("train_samples") >= 25000);
  }
  REQUIRE(losses.size() == 2);
  CHECK(losses[0] == doctest::Approx(5.2983).epsilon(0.05));

  const Outcome eval =
      train({"--eval", folder / "run/checkpoints/latest", "--set", "data.limit_val=2000", "--out", folder / "eval"});
  REQUIRE_MESSAGE(eval.code == 0, eval.err);
  std::map<std::string, std::string> classes;
  std::ifstream list(root + "/val/val_annotations.txt");
  for (std::string line; std::getline(list, line);) {
    const std::size_t tab = line.find('\t');
    classes[line.substr(0, tab)] = line.substr(tab + 1, line.find('\t', tab + 1) - tab - 1);
  }
  CHECK(classes.size() == 10000);
  std::ifstream predictions(folder / "eval/predictions.csv");
  std::string line;
  std::getline(predictions, line);
  int rows = 0, right = 0;
  while (std::getline(predictions, line)) {
    const std::size_t comma = line.find(',');
    const std::string file = line.substr(0, comma).substr(line.rfind('/', comma) + 1);
    right += classes.at(file) == line.substr(comma + 1, line.find(',', comma + 1) - comma - 1);
    ++rows;
  }
  CHECK(rows == 2000);
  CHECK(right == rows);
}

TEST_CASE("polygrad_bench loader measures each stage") {
  const TemporaryFolder folder;
  for (int kind = 0; kind < 3; ++kind) write_class(folder / ("set/" + std::to_string(kind)), kind, 4);
  const Outcome outcome = run_program(
      "polygrad_bench", {"loader", "--data", folder / "set", "--workers", "2", "--image", "16", "--pairs", "1"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  for (const char* key : {"\"bench\":\"loader\"", "\"images\":12", "read_per_s", "decode_per_s", "resize_per_s",
                          "augment_per_s", "batch_per_s", "\"workers\":2"}) {
    CHECK_MESSAGE(contains(outcome.out, key), outcome.out);
  }
  CHECK(run_program("polygrad_bench", {"loader"}).code == 2);
  CHECK(run_program("polygrad_bench", {"loader", "--data", folder / "none"}).code == 3);
}
