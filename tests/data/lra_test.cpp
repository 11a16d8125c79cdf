// The tasks of the Long Range Arena as parts of a run, and batches of sequences.
#include "data/lra.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "data/decode.h"
#include "data/listops_generator.h"
#include "data/loader.h"
#include "data/text_pairs.h"
#include "data/token_table.h"
#include "engine/error.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

DataOptions options_of(const std::string& task, const std::string& root) {
  DataOptions options;
  options.name = "lra_" + task;
  options.root = root;
  return options;
}

std::string failure_of(const DataOptions& options) {
  try {
    open_data(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Sequences of lengths 1, 2, ... n whose ids are their length.
class Steps : public TokenTable {
 public:
  explicit Steps(int size) : TokenTable("steps", {"even", "odd"}, 0) {
    for (int i = 1; i <= size; ++i) add(std::string(static_cast<std::size_t>(i), static_cast<char>(i)), 1000, i % 2);
  }
  std::string describe(std::int64_t index) const override { return "step " + std::to_string(index); }
};

void make_reviews(const std::string& root, int each) {
  for (const char* side : {"train/neg", "train/pos", "test/neg", "test/pos"}) {
    std::filesystem::create_directories(root + "/" + side);
    for (int i = 0; i < each; ++i) {
      write_bytes(root + "/" + side + "/" + std::to_string(i) + "_1.txt",
                  std::string(static_cast<std::size_t>(i), 'x'));
    }
  }
}

}  // namespace

TEST_CASE("a task without data says how to get them") {
  CHECK(failure_of(options_of("listops", "")).find("lra_train --task listops --generate DIR --count 100000") !=
        std::string::npos);
  CHECK(failure_of(options_of("pathfinder", "/nonexistent")).find("--generate DIR") != std::string::npos);
  CHECK(failure_of(options_of("text", "")).find("Large Movie Review Dataset") != std::string::npos);
  CHECK(failure_of(options_of("retrieval", "")).find("new_aan_pairs") != std::string::npos);
  CHECK(failure_of(options_of("image", "")).find("CIFAR-10") != std::string::npos);
  const TemporaryFolder folder;
  CHECK(failure_of(options_of("listops", folder.path())).find("has no basic_train.tsv or train_d20s.tsv") !=
        std::string::npos);
}

TEST_CASE("text: a tenth of the training reviews is held out by default, or the test set is the dev set") {
  const TemporaryFolder folder;
  make_reviews(folder.path(), 20);
  DataOptions options = options_of("text", folder.path());
  const DataParts held = open_data(options);
  CHECK(held.train->size() == 36);
  CHECK(held.val->size() == 4);
  CHECK(held.test->size() == 40);
  CHECK(class_counts(*held.val) == std::vector<std::int64_t>{2, 2});
  CHECK(held.length == 4096);
  std::set<std::string> files;
  for (const auto& part : {held.train, held.val}) {
    for (std::int64_t i = 0; i < part->size(); ++i) files.insert(part->describe(i));
  }
  CHECK(files.size() == 40);
  options.dev = "test";
  const DataParts reference = open_data(options);
  CHECK(reference.train->size() == 40);
  CHECK(reference.val->fingerprint() == reference.test->fingerprint());
  CHECK(reference.fingerprint() != held.fingerprint());
}

TEST_CASE("text_length cuts; text_margin leaves 24 of each 1024 places empty, as the reference") {
  const TemporaryFolder folder;
  make_reviews(folder.path(), 2);
  write_bytes(folder / "test/neg/9_1.txt", std::string(5000, 'x'));
  DataOptions options = options_of("text", folder.path());
  const auto kept = [&] { return open_lra(options, "test").test->token_counts(2).kept; };
  CHECK(kept() == 4096);
  options.text_length = 1024;
  CHECK(kept() == 1024);
  CHECK(open_lra(options, "test").length == 1024);
  options.text_margin = true;
  CHECK(kept() == 1000);
  options.text_length = -1;
  CHECK(kept() == 4000);
  CHECK(open_lra(options, "test").length == 4096);
}

TEST_CASE("one part can be opened without the files of the others") {
  const TemporaryFolder folder;
  write_listops(folder.path(), 50, 1);
  write_synthetic_pairs(folder.path(), 20, 1);
  make_reviews(folder.path(), 4);
  for (const char* gone : {"basic_train.tsv", "basic_val.tsv", "new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv"}) {
    std::filesystem::remove(folder / gone);
  }
  std::filesystem::remove_all(folder / "train");
  for (const char* task : {"listops", "retrieval", "text"}) {
    CAPTURE(task);
    DataOptions options = options_of(task, folder.path());
    CHECK(!failure_of(options).empty());
    const DataParts parts = open_lra(options, "test");
    CHECK(parts.test->size() > 0);
    CHECK(!parts.train);
    CHECK(!parts.val);
    CHECK(parts.class_names == parts.test->class_names());
    const EvalData eval = open_eval_data(options, "", parts.class_names, "");
    CHECK(eval.split == "test");
    CHECK(eval.towers == (std::string(task) == "retrieval" ? 2 : 1));
    CHECK(eval.dataset->fingerprint() == parts.test->fingerprint());
    CHECK(eval.report.find("test ") != std::string::npos);
  }
}

TEST_CASE("ListOps as first published has train and test: a part of train is held out") {
  const TemporaryFolder folder;
  write_listops(folder.path(), 100, 1);
  std::filesystem::rename(folder / "basic_train.tsv", folder / "train_d20s.tsv");
  std::filesystem::rename(folder / "basic_test.tsv", folder / "test_d20s.tsv");
  DataOptions options = options_of("listops", folder.path());
  CHECK(open_data(options).train->size() == 96);  // basic_val.tsv is there
  std::filesystem::remove(folder / "basic_val.tsv");
  const DataParts parts = open_data(options);
  CHECK(parts.train->size() == 86);
  CHECK(parts.val->size() == 10);
  CHECK(parts.test->size() == 2);
  // The long range arena's own layout has three files: a missing one is not made up for.
  std::filesystem::rename(folder / "train_d20s.tsv", folder / "basic_train.tsv");
  CHECK(failure_of(options).find("has no basic_val.tsv") != std::string::npos);
}

TEST_CASE("a gap in the row of CIFAR-10's files is an error, not a smaller set") {
  const TemporaryFolder folder;
  std::string record(3073, '\0');
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_4.bin", "test_batch.bin"}) {
    std::string records;
    for (int i = 0; i < 20; ++i) records += record;
    write_bytes(folder / name, records);
  }
  const DataOptions options = options_of("image", folder.path());
  CHECK(failure_of(options).find("data_batch_3.bin is missing, though") != std::string::npos);
  std::filesystem::remove(folder / "data_batch_4.bin");
  CHECK(open_data(options).train->size() + open_data(options).val->size() == 40);
  std::filesystem::remove(folder / "data_batch_1.bin");
  CHECK(failure_of(options).find("data_batch_1.bin is missing, though") != std::string::npos);
}

TEST_CASE("limits, and values without sense") {
  const TemporaryFolder folder;
  make_reviews(folder.path(), 10);
  DataOptions options = options_of("text", folder.path());
  options.limit_train = 5;
  options.limit_val = 3;
  const DataParts parts = open_data(options);
  CHECK(parts.train->size() == 5);
  CHECK(parts.val->size() == 2);
  CHECK(parts.test->size() == 3);
  options.val_fraction = 0;
  CHECK(failure_of(options).find("data.val_fraction") != std::string::npos);
  options = options_of("image", folder.path());
  options.text_length = 512;
  CHECK(failure_of(options).find("data.text_length 512") != std::string::npos);
}

TEST_CASE("a batch is as long as its longest sample, and says where a shorter one has ended") {
  LoaderOptions options;
  options.sampler.batch_size = 4;
  options.sampler.shuffle = false;
  Loader loader(std::make_shared<Steps>(10), options);
  const Batch first = *loader.next(), second = *loader.next(), last = *loader.next();
  CHECK(!first.images.defined());
  CHECK(first.tokens.shape() == Shape{4, 1, 4});
  CHECK(first.input().is_same(first.tokens));
  CHECK(first.tokens.to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{1, -1, -1, -1, 2, 2, -1, -1, 3, 3, 3, -1, 4, 4, 4, 4});
  CHECK(second.tokens.shape() == Shape{4, 1, 8});
  CHECK(last.tokens.shape() == Shape{2, 1, 10});
  CHECK(last.labels.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0});
}

TEST_CASE("buckets: each sample once, similar lengths together, another order in each epoch, whole batches first") {
  LoaderOptions options;
  options.sampler.batch_size = 8;
  options.sampler.bucket = 4;
  options.sampler.seed = 3;
  options.epochs = 2;
  Loader loader(std::make_shared<Steps>(100), options);
  std::vector<std::vector<std::int64_t>> epochs;
  double padded = 0, filled = 0;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> order;
    for (int b = 0; b < 13; ++b) {
      const Batch batch = *loader.next();
      CHECK(batch.size() == (b < 12 ? 8 : 4));
      order.insert(order.end(), batch.indices.begin(), batch.indices.end());
      padded += static_cast<double>(batch.tokens.numel());
      for (const std::int64_t i : batch.indices) filled += static_cast<double>(i + 1);
    }
    epochs.push_back(order);
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < 100; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
  }
  CHECK(epochs[0] != epochs[1]);
  CHECK(padded / filled < 1.35);  // shuffled alone: about 1.75
  // From the middle of an epoch on, the order is the same.
  const Sampler sampler({.size = 100, .batch_size = 8, .seed = 3, .bucket = 4}, token_lengths(Steps(100)));
  CHECK(sampler.order(1) == epochs[1]);
  CHECK_THROWS_AS(Sampler({.size = 100, .batch_size = 8, .bucket = 4}), ValueError);
}

TEST_CASE("an unusable sample of tokens is left out or replaced, as a picture is") {
  class Faulty : public Steps {
   public:
    Faulty() : Steps(4) {}
    Sample get(std::int64_t index, Generator& generator) const override {
      if (index == 2) throw ImageError(ImageFault::corrupt, "[test] damaged");
      return Steps::get(index, generator);
    }
  };
  LoaderOptions options;
  options.sampler.batch_size = 4;
  options.sampler.shuffle = false;
  const auto first = [&](BadSample choice) {
    options.bad_sample = choice;
    Loader loader(std::make_shared<Faulty>(), options);
    return *loader.next();
  };
  CHECK_THROWS_AS(first(BadSample::stop), ImageError);
  const Batch dropped = first(BadSample::drop);
  CHECK(dropped.indices == std::vector<std::int64_t>{0, 1, 3});
  CHECK(dropped.tokens.shape() == Shape{3, 1, 4});
  CHECK(dropped.labels.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 0});
  const Batch replaced = first(BadSample::replace);
  CHECK(replaced.indices == std::vector<std::int64_t>{0, 1, 3, 3});
  CHECK(replaced.tokens.shape() == Shape{4, 1, 4});
}

TEST_CASE("buckets and repeats: each sample as often, its views beside each other") {
  const Sampler sampler({.size = 64, .batch_size = 4, .seed = 1, .repeats = 2, .bucket = 4}, token_lengths(Steps(64)));
  const std::vector<std::int64_t> order = sampler.order(0);
  REQUIRE(order.size() == 64);
  for (std::size_t i = 0; i < order.size(); i += 2) CHECK(order[i] == order[i + 1]);
  CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 32);
}
