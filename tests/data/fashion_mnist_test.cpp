// Fashion-MNIST where Debian's package puts it, and what is said where it is not.
#include "data/fashion_mnist.h"

#include <doctest/doctest.h>

#include <set>

#include "data/catalog.h"
#include "engine/error.h"
#include "tests/data/file_bytes.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using doctest::Contains;
using testing::gzip_bytes;
using testing::idx_bytes;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

namespace {

bool installed() { return std::filesystem::exists(kFashionMnistRoot); }
constexpr const char* kNotInstalled = "sample data missing: the package dataset-fashion-mnist is not installed";

// A data set of `count` 2 x 2 images whose labels go round `classes`.
void write_part(const TemporaryFolder& folder, const std::string& part, std::uint32_t count, int classes, bool gzip) {
  std::string pixels, labels;
  for (std::uint32_t i = 0; i < count; ++i) {
    pixels += std::string(4, static_cast<char>(i));
    labels += static_cast<char>(static_cast<int>(i) % classes);
  }
  const auto write = [&](const std::string& name, const std::string& bytes) {
    write_bytes(folder / (part + name + (gzip ? ".gz" : "")), gzip ? gzip_bytes(bytes) : bytes);
  };
  write("-images-idx3-ubyte", idx_bytes(0x08, {count, 2, 2}, pixels));
  write("-labels-idx1-ubyte", idx_bytes(0x08, {count}, labels));
}

}  // namespace

TEST_CASE("the installed data set: sizes, classes, statistics") {
  if (!installed()) return testing::skip(kNotInstalled);
  const auto train = open_fashion_mnist("", true), test = open_fashion_mnist("", false);
  CHECK(train->size() == 60000);
  CHECK(test->size() == 10000);
  CHECK(train->height() == 28);
  CHECK(train->width() == 28);
  CHECK(train->class_names().at(9) == "Ankle boot");
  CHECK(train->label(0) == 9);
  CHECK(class_counts(*train) == std::vector<std::int64_t>(10, 6000));
  CHECK(class_counts(*test) == std::vector<std::int64_t>(10, 1000));
  CHECK(train->mean() == doctest::Approx(0.2860).epsilon(1e-3));
  CHECK(train->stddev() == doctest::Approx(0.3530).epsilon(1e-3));
}

TEST_CASE("by default 5,000 training images are held out, 500 of each class, and the test images stay whole") {
  if (!installed()) return testing::skip(kNotInstalled);
  const DataParts parts = open_data({});
  CHECK(parts.train->size() == 55000);
  CHECK(parts.val->size() == 5000);
  CHECK(parts.test->size() == 10000);
  CHECK(class_counts(*parts.val) == std::vector<std::int64_t>(10, 500));
  CHECK(parts.channels == 1);
  CHECK(parts.mean.size() == 1);
  CHECK(parts.fingerprint() == open_data({}).fingerprint());
}

TEST_CASE("a cut file of the package is refused, also in the middle of its compressed stream") {
  if (!installed()) return testing::skip(kNotInstalled);
  const TemporaryFolder folder;
  const std::string name = "/t10k-labels-idx1-ubyte.gz";
  const std::string whole = read_bytes(kFashionMnistRoot + name);
  CHECK(read_idx(kFashionMnistRoot + name).numel() == 10000);
  for (const std::size_t kept : {whole.size() - 1, whole.size() - 8, whole.size() / 2, std::size_t{20}}) {
    write_bytes(folder / "cut", whole.substr(0, kept));
    CHECK_THROWS_WITH_AS(read_idx(folder / "cut"), Contains((folder / "cut").c_str()), DataError);
  }
}

TEST_CASE("where it is missing: the path tried, the layout, how to get it") {
  const TemporaryFolder folder;
  const std::string root = folder / "nothing";
  CHECK_THROWS_WITH_AS(
      open_fashion_mnist(root, true),
      ("[data] no file " + root + "/train-images-idx3-ubyte (nor train-images-idx3-ubyte.gz); expected in " + root +
       ": train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, each plain "
       "or "
       "with .gz; install it with: apt-get install dataset-fashion-mnist (it lies in /usr/share/datasets/fashion-mnist "
       "then), or name its folder with --data DIR")
          .c_str(),
      DataError);
  DataOptions options;
  options.root = root;
  CHECK_THROWS_WITH_AS(open_data(options), Contains((root + "/train-images-idx3-ubyte").c_str()), DataError);
  CHECK_THROWS_WITH_AS(open_idx_folder("", true), Contains("--data DIR"), DataError);
}

TEST_CASE("any folder with the four names, plain or gzipped, is the data set idx") {
  for (const bool gzip : {false, true}) {
    const TemporaryFolder folder;
    write_part(folder, "train", 24, 3, gzip);
    write_part(folder, "t10k", 6, 3, gzip);
    DataOptions options;
    options.name = "idx";
    options.root = folder.path();
    const DataParts parts = open_data(options);
    CHECK(parts.train->size() == 22);
    CHECK(parts.val->size() == 2);  // 1/12
    CHECK(parts.test->size() == 6);
    CHECK(parts.class_names == std::vector<std::string>{"0", "1", "2"});
  }
}

TEST_CASE("limits, fractions and seeds: disjoint parts that the seed chooses") {
  const TemporaryFolder folder;
  write_part(folder, "train", 60, 3, false);
  write_part(folder, "t10k", 30, 3, false);
  DataOptions options;
  options.name = "idx";
  options.root = folder.path();
  options.val_fraction = 0.5;
  options.limit_train = 12;
  options.limit_val = 7;
  const DataParts parts = open_data(options);
  CHECK(parts.train->size() == 12);
  CHECK(parts.val->size() == 7);
  CHECK(parts.test->size() == 7);
  // The pixel is the sample's number in its file.
  std::set<int> train, val;
  Generator generator(0);
  for (std::int64_t i = 0; i < 12; ++i) train.insert(parts.train->get(i, generator).image.data<std::uint8_t>()[0]);
  for (std::int64_t i = 0; i < 7; ++i) val.insert(parts.val->get(i, generator).image.data<std::uint8_t>()[0]);
  CHECK(train.size() == 12);
  for (const int sample : val) CHECK(train.count(sample) == 0);

  const std::string fingerprint = parts.fingerprint();
  CHECK(open_data(options).fingerprint() == fingerprint);
  options.split_seed = 1;
  CHECK(open_data(options).fingerprint() != fingerprint);
}

TEST_CASE("options without sense, and a name that is none") {
  const TemporaryFolder folder;
  write_part(folder, "train", 24, 3, false);
  write_part(folder, "t10k", 6, 4, false);
  DataOptions options;
  options.root = folder.path();
  options.name = "idx";
  CHECK_THROWS_WITH_AS(open_data(options), "[data] the test labels have 4 classes, the training labels 3", DataError);
  write_part(folder, "t10k", 6, 3, false);
  options.val_fraction = 0;
  CHECK_THROWS_WITH_AS(open_data(options), Contains("data.val_fraction 0 holds 0 of 24"), ConfigError);
  options.val_fraction = 0.5;
  options.limit_val = 0;
  CHECK_THROWS_WITH_AS(open_data(options), Contains("data.limit_val"), ConfigError);
  options.name = "mnist";
  options.limit_val = -1;
  CHECK_THROWS_WITH_AS(open_data(options),
                       "[data] no data set is called 'mnist'; known: fashion_mnist, cifar10, cifar100, tiny_imagenet, "
                       "image_folder, idx, lra_listops, lra_text, lra_retrieval, lra_image, lra_pathfinder",
                       ConfigError);
}
