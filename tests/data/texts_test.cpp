// Film reviews and pairs of documents: bytes in, ids out, nothing dropped, nothing glued; what is wrong is named.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>

#include "data/imdb.h"
#include "data/text_pairs.h"
#include "engine/error.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

Tensor tokens_of(const Dataset& data, std::int64_t index) {
  Generator unused;
  return data.get(index, unused).tokens;
}

std::vector<std::int64_t> ids_of(const Dataset& data, std::int64_t index) {
  return tokens_of(data, index).to_vector<std::int64_t>();
}

std::vector<std::int64_t> ids(const std::string& text) {
  std::vector<std::int64_t> result;
  for (const char c : text) result.push_back(static_cast<unsigned char>(c) + 1);
  return result;
}

// A folder of reviews: each of {train,test}/{neg,pos}.
void make_reviews(const std::string& root) {
  for (const char* side : {"train/neg", "train/pos", "test/neg", "test/pos"}) {
    std::filesystem::create_directories(root + "/" + side);
  }
  write_bytes(root + "/train/neg/2_1.txt", "bad<br />film");
  write_bytes(root + "/train/neg/10_3.txt", std::string("\0\xFF\n", 3));
  write_bytes(root + "/train/pos/0_9.txt", "");
  write_bytes(root + "/train/pos/1_10.txt", std::string(5000, 'x'));
  write_bytes(root + "/test/neg/0_2.txt", std::string(10, 'a'));
  write_bytes(root + "/test/pos/0_8.txt", std::string(4000, 'b'));
}

template <class F>
std::string failure_of(const F& action) {
  try {
    action();
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::string pairs_failure(const std::string& content) {
  const TemporaryFolder folder;
  write_bytes(folder / "f.tsv", content);
  const std::string text = failure_of([&] { TextPairs(folder / "f.tsv", 4096); });
  const std::size_t at = text.find(folder.path());
  return at == std::string::npos ? text : text.substr(0, at) + text.substr(at + folder.path().size() + 1);
}

}  // namespace

TEST_CASE("reviews are bytes as they are, in a fixed order, cut to the length") {
  const TemporaryFolder folder;
  make_reviews(folder.path());
  const ImdbDataset data(folder.path(), "train", 4000);
  CHECK(data.size() == 4);
  CHECK(ids_of(data, 0) == ids("bad<br />film"));
  CHECK(ids_of(data, 1) == ids(std::string("\0\xFF\n", 3)));  // 2_1 before 10_3: numbers count as such
  CHECK(data.describe(0) == folder / "train/neg/2_1.txt");
  CHECK(data.label(1) == 0);
  CHECK(data.label(2) == 1);
  CHECK(tokens_of(data, 2).shape() == Shape{1, 0});  // an empty review is a sample
  CHECK(ids_of(data, 3).size() == 4000);
  CHECK(data.token_counts(3).length == 5000);
  CHECK(data.class_names() == std::vector<std::string>{"neg", "pos"});
  const std::string report = describe_tokens(data, "train");
  CHECK(report.find("cut: 1 (25.0 %)") != std::string::npos);
  CHECK(report.find("empty: 1") != std::string::npos);
  CHECK(report.find("neg 2 pos 2") != std::string::npos);
  // The byte 'A' (65) is 66, padding has no id, the largest is 256.
  CHECK(ids("A") == std::vector<std::int64_t>{66});
  CHECK(ids_of(ImdbDataset(folder.path(), "test", 4000), 1).size() == 4000);
}

TEST_CASE("the folder or the one above it; other files are left alone; what is missing is named") {
  const TemporaryFolder folder;
  make_reviews(folder / "aclImdb");
  write_bytes(folder / "aclImdb/train/pos/.DS_Store", "x");
  write_bytes(folder / "aclImdb/train/pos/notes.md", "x");
  CHECK(ImdbDataset(folder.path(), "train", 100).size() == 4);
  CHECK(ImdbDataset(folder / "aclImdb", "train", 100).fingerprint() ==
        ImdbDataset(folder.path(), "train", 100).fingerprint());
  CHECK(ImdbDataset(folder.path(), "train", 100).fingerprint() !=
        ImdbDataset(folder.path(), "train", 50).fingerprint());
  CHECK(failure_of([&] { ImdbDataset(folder / "none", "train", 9); }).find("has no folder train") != std::string::npos);
  std::filesystem::remove(folder / "aclImdb/test/pos/0_8.txt");
  CHECK(failure_of([&] { ImdbDataset(folder.path(), "test", 9); }).find("test/pos holds no review") !=
        std::string::npos);
  std::filesystem::remove_all(folder / "aclImdb/test/pos");
  CHECK(failure_of([&] { ImdbDataset(folder.path(), "test", 9); }).find("test/pos can't be read") != std::string::npos);
}

TEST_CASE("pairs: no quoting, labels as numbers, both towers, bytes as they are") {
  const TemporaryFolder folder;
  const std::string quoted = "he said \"a, b\"", odd("\xC3\xA9\0'", 4);
  write_bytes(folder / "f.tsv",
              "0.0\tP1\tP2\tshort\t" + quoted + "\n1\tP3\t\t" + odd + "\t\r\n1.0\tA\tB\t\"\tlast one");
  const TextPairs data(folder / "f.tsv", 4096);
  CHECK(data.size() == 3);
  CHECK(data.label(0) == 0);
  CHECK(data.label(1) == 1);
  CHECK(data.label(2) == 1);
  const std::vector<std::int64_t> first = ids_of(data, 0);
  CHECK(tokens_of(data, 0).shape() == Shape{2, static_cast<std::int64_t>(quoted.size())});
  CHECK(std::vector<std::int64_t>(first.begin(), first.begin() + 5) == ids("short"));
  CHECK(first[5] == kNoToken);
  CHECK(std::vector<std::int64_t>(first.begin() + std::ssize(quoted), first.end()) == ids(quoted));
  const std::vector<std::int64_t> second = ids_of(data, 1);
  CHECK(std::vector<std::int64_t>(second.begin(), second.begin() + 4) == ids(odd));
  CHECK(second[4] == kNoToken);  // the empty one
  CHECK(ids_of(data, 2)[0] == ids("\"")[0]);
  CHECK(describe_tokens(data, "train").find("empty: 1;") !=
        std::string::npos);  // one document without a byte is enough
  CHECK(data.describe(2) == folder / "f.tsv:3");
}

TEST_CASE("pairs: a text keeps 10,000 bytes at most, and as many as the model takes") {
  const TemporaryFolder folder;
  write_bytes(folder / "f.tsv", "1\ta\tb\t" + std::string(12000, 'x') + "\t" + std::string(7, 'y') + "\n");
  CHECK(tokens_of(TextPairs(folder / "f.tsv", 20000), 0).shape() == Shape{2, 10000});
  const TextPairs data(folder / "f.tsv", 4000);
  CHECK(tokens_of(data, 0).shape() == Shape{2, 4000});
  CHECK(ids_of(data, 0)[4000 + 6] == ids("y")[0]);
  CHECK(ids_of(data, 0)[4000 + 7] == kNoToken);
  CHECK(data.token_counts(0).length == 12000);
  CHECK(data.token_counts(0).kept == 4000);
}

TEST_CASE("pairs: malformed lines are named") {
  const std::string good = "1.0\ta\tb\tx\ty\n";
  CHECK(pairs_failure("") == "[text_pairs] f.tsv has no rows");
  CHECK(pairs_failure(good + "1.0\ta\tb\tx\n").find("[text_pairs] f.tsv:2: 4 columns") == 0);
  CHECK(pairs_failure(good + "1.0\ta\tb\tx\ty\tz\n").find("[text_pairs] f.tsv:2: 6 columns") == 0);
  CHECK(pairs_failure(good + "2\ta\tb\tx\ty\n").find("[text_pairs] f.tsv:2: label '2'") == 0);
  CHECK(pairs_failure("label\tid1\tid2\ttext1\ttext2\n" + good).find("[text_pairs] f.tsv:1: label 'label'") == 0);
  CHECK(pairs_failure(good + "\n").find("[text_pairs] f.tsv:2: 1 columns") == 0);
  CHECK(pairs_failure("\ta\tb\tx\ty\n").find("[text_pairs] f.tsv:1: label ''") == 0);
}

TEST_CASE("pairs: a file that shrinks meanwhile is an error, not another text") {
  const TemporaryFolder folder;
  write_bytes(folder / "f.tsv", "1.0\ta\tb\tsome text\tand more\n");
  const TextPairs data(folder / "f.tsv", 100);
  std::filesystem::resize_file(folder / "f.tsv", 15);
  Generator unused;
  CHECK_THROWS_WITH_AS(data.get(0, unused), doctest::Contains("has become shorter"), DataError);
}

TEST_CASE("pairs: a file far larger than what is kept in memory") {
  const TemporaryFolder folder;
  constexpr int kRows = 20000, kBytes = 6000;  // 240 MB
  {
    std::ofstream file(folder / "f.tsv", std::ios::binary);
    for (int i = 0; i < kRows; ++i) {
      const std::string text(kBytes, static_cast<char>('a' + i % 26));
      file << (i % 2) << ".0\tp" << i << "\tq\t" << text << '\t' << text << '\n';
    }
  }
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  const TextPairs data(folder / "f.tsv", 4096);
  CHECK(data.size() == kRows);
  for (const std::int64_t index : {19999, 0, 12345}) {
    const std::vector<std::int64_t> read = ids_of(data, index);
    CHECK(read.size() == 2 * 4096);
    CHECK(std::all_of(read.begin(), read.end(), [&](std::int64_t id) { return id == 'a' + index % 26 + 1; }));
  }
  getrusage(RUSAGE_SELF, &after);
  CHECK(after.ru_maxrss - before.ru_maxrss < 32 * 1024);  // KiB
}

TEST_CASE("made-up pairs: the asked number, both labels, one seed one set") {
  const TemporaryFolder folder;
  write_synthetic_pairs(folder / "a", 200, 3);
  write_synthetic_pairs(folder / "b", 200, 3);
  std::int64_t total = 0, together = 0;
  for (const char* name : {"/new_aan_pairs.train.tsv", "/new_aan_pairs.eval.tsv", "/new_aan_pairs.test.tsv"}) {
    CHECK(read_bytes(folder / "a" + name) == read_bytes(folder / "b" + name));
    const TextPairs data(folder / "a" + name, 4096);
    total += data.size();
    for (std::int64_t i = 0; i < data.size(); ++i) together += data.label(i);
  }
  CHECK(total == 200);
  CHECK(together > 70);
  CHECK(together < 130);
  CHECK_THROWS_AS(write_synthetic_pairs(folder / "c", 9, 3), ValueError);
}
