// Pictures as tokens: the formula, CIFAR-10's binaries and class folders as the task "image", malformed files.
#include "data/grey_pixels.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "data/catalog.h"
#include "data/cifar.h"
#include "data/decode.h"
#include "data/png.h"
#include "engine/error.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

// A record whose pixel i has the colours (i, 2 i, 3 i) modulo 256.
std::string record(int label) {
  std::string bytes(1, static_cast<char>(label));
  for (int plane = 1; plane <= 3; ++plane) {
    for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(plane * i);
  }
  return bytes;
}

std::vector<std::int64_t> ids_of(const Dataset& data, std::int64_t index) {
  Generator unused;
  const Tensor tokens = data.get(index, unused).tokens;
  CHECK(tokens.shape() == Shape{1, 1024});
  return tokens.to_vector<std::int64_t>();
}

DataOptions options_of(const std::string& root) {
  DataOptions options;
  options.name = "lra_image";
  options.root = root;
  options.val_fraction = 0.5;
  return options;
}

std::string failure_of(const std::string& root) {
  try {
    open_data(options_of(root));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Grey pictures whose pixel i, row by row, has the value i / 4.
std::string ramp_png(std::int64_t height, std::int64_t width) {
  TensorOptions options;
  options.dtype = DType::u8;
  Tensor ramp = Tensor::empty(Shape{1, height, width}, options);
  for (std::int64_t i = 0; i < ramp.numel(); ++i) ramp.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i / 4);
  return png_bytes(ramp);
}

}  // namespace

TEST_CASE("grey is TensorFlow's: in [0, 1] floats, times 255.5, truncated") {
  CHECK(grey_of(0, 0, 0) == 0);
  CHECK(grey_of(255, 255, 255) == 255);  // 0.9999 * 255.5 = 255.47
  CHECK(grey_of(255, 0, 0) == 76);       // 0.2989 * 255.5 = 76.37
  CHECK(grey_of(0, 255, 0) == 149);      // 149.98
  CHECK(grey_of(0, 0, 255) == 29);       // 29.13
  CHECK(grey_of(59, 62, 63) == 61);      // the first pixel of the official training set: 61.41
  CHECK(grey_of(1, 1, 1) == 1);          // 1.0019
}

TEST_CASE("a picture's tokens: grey of three channels, one channel as it is, another size is an error") {
  TensorOptions options;
  options.dtype = DType::u8;
  Tensor colours = Tensor::empty(Shape{3, 32, 32}, options), grey = Tensor::empty(Shape{1, 32, 32}, options);
  for (std::int64_t i = 0; i < 3072; ++i) colours.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(7 * i);
  for (std::int64_t i = 0; i < 1024; ++i) grey.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(3 * i);
  const auto ids = grey_tokens(colours, "x").to_vector<std::int64_t>();
  const auto same = grey_tokens(grey, "x").to_vector<std::int64_t>();
  for (std::int64_t i = 0; i < 1024; ++i) {
    const auto at = [&](std::int64_t plane) { return static_cast<std::uint8_t>(7 * (i + 1024 * plane)); };
    CHECK(ids[static_cast<std::size_t>(i)] == grey_of(at(0), at(1), at(2)));
    CHECK(same[static_cast<std::size_t>(i)] == static_cast<std::uint8_t>(3 * i));
  }
  CHECK_THROWS_WITH_AS(grey_tokens(Tensor::empty(Shape{3, 16, 64}, options), "a.png"),
                       "[grey_tokens] a.png: 16 x 64 pixels; expected 32 x 32", ImageError);
}

TEST_CASE("binary batches, in their order") {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "cifar-10-batches-bin");
  write_bytes(folder / "cifar-10-batches-bin/data_batch_1.bin", record(6) + record(6));
  write_bytes(folder / "cifar-10-batches-bin/data_batch_2.bin", record(0) + record(0));
  write_bytes(folder / "cifar-10-batches-bin/test_batch.bin", record(3));
  const DataParts parts = open_data(options_of(folder.path()));
  CHECK(class_counts(*parts.train) == std::vector<std::int64_t>{1, 0, 0, 0, 0, 0, 1, 0, 0, 0});
  CHECK(class_counts(*parts.val) == class_counts(*parts.train));
  CHECK(parts.train->label(0) == 6);
  CHECK(parts.train->describe(1).starts_with(folder / "cifar-10-batches-bin/data_batch_2.bin["));
  CHECK(parts.vocabulary == "grey");
  CHECK(parts.test->label(0) == 3);
  const std::vector<std::int64_t> ids = ids_of(*parts.train, 1);
  for (const int i : {0, 1, 100, 1023}) {
    CHECK(ids[static_cast<std::size_t>(i)] ==
          grey_of(static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(2 * i), static_cast<std::uint8_t>(3 * i)));
  }
  CHECK(open_data(options_of(folder / "cifar-10-batches-bin")).fingerprint() == parts.fingerprint());
  // For an evaluation the test file is enough.
  std::filesystem::remove(folder / "cifar-10-batches-bin/data_batch_1.bin");
  const EvalData test = open_eval_data(options_of(folder.path()), "", parts.class_names, parts.fingerprint());
  CHECK(test.split == "test");
  CHECK(test.length == 1024);
  CHECK(test.dataset->fingerprint() == parts.test->fingerprint());
  CHECK(failure_of(folder.path()).find("data_batch_1.bin") != std::string::npos);
}

TEST_CASE("class folders; a picture's own faults show when it is read") {
  const TemporaryFolder folder;
  for (const char* part : {"train", "test"}) {
    for (const std::string& name : cifar10_classes()) {
      std::filesystem::create_directories(folder / part + "/" + name);
      for (const char* file : {"/a.png", "/b.png"}) write_bytes(folder / part + "/" + name + file, ramp_png(32, 32));
    }
  }
  write_bytes(folder / "train/bird/notes.txt", "x");
  const DataParts parts = open_data(options_of(folder.path()));
  CHECK(parts.train->size() == 10);
  CHECK(parts.test->size() == 20);
  CHECK(parts.class_names == cifar10_classes());
  CHECK(parts.foreign == std::vector<std::string>{folder / "train/bird/notes.txt"});
  CHECK(parts.train->label(2) == 2);
  CHECK(ids_of(*parts.test, 0)[1023] == grey_of(255, 255, 255));
  CHECK(ids_of(*parts.test, 0)[400] == grey_of(100, 100, 100));
  Generator unused;
  const auto read = [&](const std::string& content) {
    write_bytes(folder / "test/airplane/a.png", content);
    try {
      parts.test->get(0, unused);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(read(ramp_png(16, 64)).find("test/airplane/a.png: 16 x 64 pixels; expected 32 x 32") != std::string::npos);
  CHECK(read("no image").find("test/airplane/a.png") != std::string::npos);
  CHECK(read("").find("test/airplane/a.png") != std::string::npos);
  CHECK(read(ramp_png(32, 32).substr(0, 80)).find("test/airplane/a.png") != std::string::npos);
  CHECK(read(ramp_png(32, 32)).empty());
  // A folder without a test part: the held-out pictures are what a model is evaluated on.
  const EvalData undivided = open_eval_data(options_of(folder / "train"), "", parts.class_names, "");
  CHECK(undivided.split == "val");
  CHECK(undivided.dataset->size() == 10);
  std::filesystem::create_directories(folder / "test/zebra");
  write_bytes(folder / "test/zebra/a.png", ramp_png(32, 32));
  CHECK(failure_of(folder.path()).find("the class 'zebra' (1 pictures) is none of the 10 classes") !=
        std::string::npos);
}

TEST_CASE("malformed binary files are named") {
  const TemporaryFolder folder;
  CHECK(failure_of(folder / "none").find("there is no folder") != std::string::npos);
  CHECK(failure_of(folder.path()).find("no class folders with pictures in it") != std::string::npos);
  const auto with = [&](const std::string& content) {
    write_bytes(folder / "test_batch.bin", record(0));
    write_bytes(folder / "data_batch_1.bin", content);
    return failure_of(folder.path());
  };
  CHECK(with("").find("data_batch_1.bin: 0 bytes; expected a multiple of 3073") != std::string::npos);
  CHECK(with(record(1) + "x").find("data_batch_1.bin: 3074 bytes") != std::string::npos);
  CHECK(with(record(1).substr(1)).find("data_batch_1.bin: 3072 bytes") != std::string::npos);
  CHECK(with(record(1) + record(10)).find("data_batch_1.bin[1]: label 10 is outside the 10 classes") !=
        std::string::npos);
  CHECK(with(record(255)).find("[0]: label 255") != std::string::npos);
  CHECK(with(record(1)).find("holds 1 of 1 training samples out") != std::string::npos);
  std::filesystem::remove(folder / "test_batch.bin");
  CHECK(failure_of(folder.path()).find("test_batch.bin") != std::string::npos);
}

TEST_CASE("the official records: labels and class counts") {
  const char* base = std::getenv("POLYGRAD_TEST_DATA");
  const std::string root = std::string(base ? base : "");
  if (!base || !std::filesystem::exists(root + "/cifar-10-batches-bin")) {
    return skip("sample data missing: cifar-10-batches-bin in POLYGRAD_TEST_DATA");
  }
  const GreyTokens data(open_cifar10(root, false, "train").train);
  CHECK(data.size() == 4000);
  CHECK(class_counts(data) == std::vector<std::int64_t>{396, 366, 420, 384, 422, 393, 414, 385, 407, 413});
  const int first[] = {6, 9, 9, 4, 1, 1, 2, 7, 8, 3};
  for (int i = 0; i < 10; ++i) CHECK(data.label(i) == first[i]);
  CHECK(ids_of(data, 0)[0] == 61);
  CHECK_THROWS_AS(data.token_counts(4000), IndexError);
}
