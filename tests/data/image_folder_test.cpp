// Class folders, Tiny-ImageNet's layout, CIFAR's files: which pictures, which labels, and the outcome of each oddity.
#include "data/image_folder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "data/catalog.h"
#include "data/check_data.h"
#include "data/cifar.h"
#include "engine/error.h"
#include "tests/data/picture_folder.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;

namespace {

DataOptions options_of(const std::string& name, const std::string& root) {
  DataOptions options;
  options.name = name;
  options.root = root;
  return options;
}

// Which colour sample `index` has: 0 red, 1 green, 2 blue.
int colour(const Dataset& dataset, std::int64_t index) {
  Generator generator;
  const Tensor image = dataset.get(index, generator).image;
  const auto pixels = image.to_vector<std::uint8_t>();
  const std::size_t plane = pixels.size() / 3;
  return pixels[plane - 1] > 100 ? 0 : pixels[2 * plane - 1] > 100 ? 1 : 2;
}

bool any_line(const std::vector<std::string>& lines, const std::string& text) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

std::string tiny_imagenet() {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string folder = std::string(data == nullptr ? "" : data) + "/tiny-imagenet-200";
  return is_folder(folder + "/train") && is_folder(folder + "/val") ? folder : "";
}

}  // namespace

TEST_CASE("train and val folders: classes in natural order, labels by name in every part") {
  const TemporaryFolder folder;
  // The order of the folders' making is not the classes'.
  for (const auto& [name, kind] : std::vector<std::pair<std::string, int>>{{"10", 2}, {"1", 0}, {"2", 1}}) {
    write_class(folder / ("train/" + name), kind, 3);
    write_class(folder / ("val/" + name), kind, 2, 100);
  }
  const DataParts parts = open_data(options_of("image_folder", folder.path()));
  CHECK(parts.class_names == std::vector<std::string>{"1", "2", "10"});
  CHECK(parts.train->size() == 9);
  CHECK(parts.val->size() == 6);
  CHECK_FALSE(parts.test);
  CHECK(parts.resizable);
  CHECK(parts.height == 0);
  CHECK(parts.mean == std::vector<double>{0.485, 0.456, 0.406});
  for (const auto& part : {parts.train, parts.val}) {
    for (std::int64_t i = 0; i < part->size(); ++i) CHECK(colour(*part, i) == part->label(i));
  }
  CHECK(parts.train->describe(8) == folder / "train/10/2.png");
  // The fingerprint tells files, sizes and labels.
  const std::string before = parts.fingerprint();
  CHECK(open_data(options_of("image_folder", folder.path())).fingerprint() == before);
  write_class(folder / "val/2", 1, 3, 100);
  CHECK(open_data(options_of("image_folder", folder.path())).fingerprint() != before);

  SUBCASE("a class map gives another order") {
    write_bytes(folder / "map.txt", "2\r\n10\n1\n");
    DataOptions options = options_of("image_folder", folder.path());
    options.class_map = folder / "map.txt";
    const DataParts mapped = open_data(options);
    CHECK(mapped.class_names == std::vector<std::string>{"2", "10", "1"});
    for (std::int64_t i = 0; i < mapped.val->size(); ++i) {
      CHECK(mapped.class_names[static_cast<std::size_t>(mapped.val->label(i))] ==
            parts.class_names[static_cast<std::size_t>(colour(*mapped.val, i))]);
    }
    write_bytes(folder / "map.txt", "2\n10\n2\n");
    CHECK_THROWS_WITH_AS(open_data(options), Contains("a class stands in it twice"), DataError);
    write_bytes(folder / "map.txt", "2\n10\n");
    CHECK_THROWS_WITH_AS(open_data(options), Contains("the class '1' (3 pictures) is none of the 2 classes"),
                         DataError);
  }
  SUBCASE("grey pictures have one channel") {
    DataOptions options = options_of("image_folder", folder.path());
    options.grey = true;
    Generator generator;
    const DataParts grey = open_data(options);
    CHECK(grey.channels == 1);
    CHECK(grey.mean.size() == 1);
    CHECK(grey.train->get(0, generator).image.size(0) == 1);
  }
}

TEST_CASE("one folder of classes: val is held out; train and test: likewise, and test stays whole") {
  const TemporaryFolder folder;
  for (int kind = 0; kind < 3; ++kind) write_class(folder / ("all/" + std::to_string(kind)), kind, 12);
  const DataParts parts = open_data(options_of("image_folder", folder / "all"));
  CHECK(parts.train->size() == 33);
  CHECK(parts.val->size() == 3);
  std::set<std::string> files;
  for (const auto& part : {parts.train, parts.val}) {
    for (std::int64_t i = 0; i < part->size(); ++i) files.insert(part->describe(i));
  }
  CHECK(files.size() == 36);

  for (int kind = 0; kind < 3; ++kind) {
    write_class(folder / ("two/train/" + std::to_string(kind)), kind, 12);
    write_class(folder / ("two/test/" + std::to_string(kind)), kind, 2, 50);
  }
  const DataParts two = open_data(options_of("image_folder", folder / "two"));
  CHECK(two.train->size() == 33);
  CHECK(two.val->size() == 3);
  CHECK(two.test->size() == 6);
}

TEST_CASE("oddities of folders: the documented outcome of each, one line each") {
  const TemporaryFolder folder;
  write_class(folder / "train/a", 0, 4);
  write_class(folder / "train/b", 1, 4);
  write_class(folder / "val/a", 0, 2, 50);
  write_class(folder / "val/b", 1, 2, 50);
  std::filesystem::create_directories(folder / "train/.ipynb_checkpoints");
  std::filesystem::create_directories(folder / "train/empty");
  std::filesystem::create_directory_symlink("..", folder / "train/a/round");
  for (const char* name : {"train/.DS_Store", "train/a/._x.jpg", "train/a/Thumbs.db"}) write_bytes(folder / name, "x");
  write_bytes(folder / "train/README.txt", "x");
  write_bytes(folder / "train/b/zero.jpg", "");
  write_bytes(folder / "train/loose.png", "x");
  const DataParts parts = open_data(options_of("image_folder", folder.path()));
  CHECK(parts.class_names == std::vector<std::string>{"a", "b", "empty"});
  CHECK(class_counts(*parts.train) == std::vector<std::int64_t>{4, 5, 0});
  CHECK(parts.hidden == 4);
  CHECK(parts.foreign == std::vector<std::string>{folder / "train/README.txt"});
  REQUIRE(parts.notes.size() == 4);
  CHECK(any_line(parts.notes, "train/a/round: a link to a folder above itself"));
  CHECK(any_line(parts.notes, "train/empty: a class without pictures"));
  CHECK(any_line(parts.notes, "1 pictures lie in no class folder"));
  CHECK(any_line(parts.notes, "no pictures of 1 of the 3 classes: empty"));
  Generator generator;
  CHECK_THROWS_WITH_AS(parts.train->get(8, generator), Contains("zero.jpg: empty"), ImageError);
  const DataCheck check = check_data(parts);
  CHECK(check.bad.size() == 1);
  CHECK(check.pictures == 13);
  CHECK(check.report.find("zero.jpg: empty") != std::string::npos);

  write_class(folder / "val/new", 2, 1);
  CHECK_THROWS_WITH_AS(open_data(options_of("image_folder", folder.path())),
                       Contains("val: the class 'new' (1 pictures) is none of the 3 classes of the training part"),
                       DataError);
  DataOptions mapped = options_of("image_folder", folder.path());
  mapped.class_map = folder / "no such map.txt";
  CHECK_THROWS_WITH_AS(open_data(mapped), Contains("no such map.txt"), DataError);
  // Pictures of val in no class: not a reason to hold some of train out.
  for (const char* name : {"a", "b", "new"}) std::filesystem::remove_all(folder / ("val/" + std::string(name)));
  write_bytes(folder / "val/1.png", "x");
  CHECK_THROWS_WITH_AS(open_data(options_of("image_folder", folder.path())),
                       Contains("val: 1 pictures in one folder and no val_annotations.txt"), DataError);
  CHECK_THROWS_WITH_AS(open_data(options_of("image_folder", folder / "nothing")), Contains("there is no such folder"),
                       DataError);
  CHECK_THROWS_WITH_AS(open_data(options_of("image_folder", folder / "train/a")), Contains("no class folders"),
                       DataError);
  CHECK_THROWS_WITH_AS(open_data(options_of("image_folder", "")), Contains("--data DIR"), DataError);
  // Only val beside other folders: 'train' was forgotten, or is called otherwise.
  std::filesystem::rename(folder / "train", folder / "training");
  CHECK_THROWS_WITH_AS(open_data(options_of("image_folder", folder.path())), Contains("none that is called 'train'"),
                       DataError);
}

TEST_CASE("Tiny-ImageNet's own layout: labels of the flat val folder from its list") {
  const TemporaryFolder folder;
  const std::vector<std::string> names = {"n02", "n10", "n01"};
  std::string list;
  for (int kind = 0; kind < 3; ++kind) {
    write_class(folder / ("train/" + names[static_cast<std::size_t>(kind)] + "/images"), kind, 4);
    write_bytes(folder / ("train/" + names[static_cast<std::size_t>(kind)] + "/boxes.txt"), "x");
  }
  for (int i = 0; i < 12; ++i) {
    const std::string file = "val_" + std::to_string(i) + ".png";
    const int kind = i % 3;
    write_picture(folder / ("val/images/" + file),
                  small_picture(kind == 0 ? 200 : 40, kind == 1 ? 200 : 40, kind == 2 ? 200 : 40, i));
    list += file + "\t" + names[static_cast<std::size_t>(kind)] + "\t0\t0\t1\t1\n";
  }
  write_bytes(folder / "val/val_annotations.txt", list);
  write_bytes(folder / "wnids.txt", "n10\nn02\nn01\n");
  for (int i = 0; i < 3; ++i)
    write_picture(folder / ("test/images/test_" + std::to_string(i) + ".png"), small_picture(1, 2, 3, i));
  const DataParts parts = open_data(options_of("tiny_imagenet", folder.path()));
  CHECK(parts.class_names == std::vector<std::string>{"n01", "n02", "n10"});
  CHECK(parts.val->size() == 12);
  CHECK(class_counts(*parts.val) == std::vector<std::int64_t>{4, 4, 4});
  CHECK_FALSE(parts.test);
  CHECK(any_line(parts.notes, "3 pictures without labels; not used"));
  CHECK(parts.height == 64);
  const std::vector<int> kinds = {2, 0, 1};  // by label
  for (const auto& part : {parts.train, parts.val}) {
    for (std::int64_t i = 0; i < part->size(); ++i) {
      CHECK(colour(*part, i) == kinds[static_cast<std::size_t>(part->label(i))]);
    }
  }
  // The archive's folder inside the one that is named.
  std::filesystem::create_directories(folder / "outer");
  std::filesystem::create_directory_symlink(folder.path(), folder / "outer/tiny-imagenet-200");
  CHECK(open_data(options_of("tiny_imagenet", folder / "outer")).val->size() == 12);

  SUBCASE("the same pictures in class folders are the same samples in the same order") {
    std::filesystem::create_directories(folder / "re/val");
    std::filesystem::create_directory_symlink(folder / "train", folder / "re/train");
    for (int i = 0; i < 12; ++i) {
      const std::string file = "val_" + std::to_string(i) + ".png";
      const std::string to = folder / ("re/val/" + names[static_cast<std::size_t>(i % 3)]);
      std::filesystem::create_directories(to);
      std::filesystem::copy_file(folder / ("val/images/" + file), to + "/" + file);
    }
    const DataParts again = open_data(options_of("tiny_imagenet", folder / "re"));
    REQUIRE(again.val->size() == 12);
    Generator generator;
    for (std::int64_t i = 0; i < 12; ++i) {
      CHECK(again.val->label(i) == parts.val->label(i));
      CHECK(again.val->get(i, generator).image.to_vector<std::uint8_t>() ==
            parts.val->get(i, generator).image.to_vector<std::uint8_t>());
    }
  }
  SUBCASE("without the list nothing says what the pictures show") {
    std::filesystem::remove(folder / "val/val_annotations.txt");
    CHECK_THROWS_WITH_AS(open_data(options_of("tiny_imagenet", folder.path())),
                         Contains("12 pictures in one folder and no val_annotations.txt"), DataError);
  }
  SUBCASE("a list that names what is not there, and leaves out what is") {
    write_bytes(folder / "val/val_annotations.txt", list + "val_99.png\tn01\t0\n");
    write_picture(folder / "val/images/extra.png", small_picture(1, 2, 3));
    const DataParts odd = open_data(options_of("tiny_imagenet", folder.path()));
    CHECK(odd.val->size() == 12);
    CHECK(any_line(odd.notes, "1 of its 13 pictures are not there, such as images/val_99.png"));
    CHECK(any_line(odd.notes, "1 pictures have no line"));
    write_bytes(folder / "val/val_annotations.txt", "val_0.png n01\n");
    CHECK_THROWS_WITH_AS(open_data(options_of("tiny_imagenet", folder.path())), Contains("line 1: expected"),
                         DataError);
    write_bytes(folder / "val/val_annotations.txt", "val_98.png\tn01\t0\nval_99.png\tn01\t0\n");
    CHECK_THROWS_WITH_AS(open_data(options_of("tiny_imagenet", folder.path())),
                         Contains("val_annotations.txt: none of its 2 lines names a picture"), DataError);
  }
}

TEST_CASE("an evaluation matches classes by name: some of them, in any order, in any layout") {
  const TemporaryFolder folder;
  const std::vector<std::string> known = {"red", "green", "blue"};  // the checkpoint's order
  write_class(folder / "some/blue", 2, 3);
  write_class(folder / "some/red", 0, 2);
  const auto check = [&](const EvalData& eval, std::int64_t size) {
    REQUIRE(eval.dataset->size() == size);
    CHECK(eval.dataset->class_names() == known);
    for (std::int64_t i = 0; i < size; ++i) {
      CHECK(eval.dataset->label(i) == colour(*eval.dataset, i));
      Generator generator;
      CHECK(eval.dataset->get(i, generator).label == eval.dataset->label(i));
    }
  };
  check(open_eval_data(options_of("image_folder", folder / "some"), "", known, ""), 5);
  std::filesystem::create_directories(folder / "parts");
  std::filesystem::create_directory_symlink(folder / "some", folder / "parts/val");
  const EvalData val = open_eval_data(options_of("image_folder", folder / "parts"), "", known, "");
  check(val, 5);
  CHECK(val.split == "val");
  CHECK_THROWS_WITH_AS(open_eval_data(options_of("image_folder", folder / "some"), "", {"red", "green"}, ""),
                       Contains("/blue/0.png) is none of the 2 known classes"), DataError);
  CHECK_THROWS_WITH_AS(open_eval_data(options_of("image_folder", folder / "some"), "", {"red", "blue", "red"}, ""),
                       Contains("'red' stands twice"), DataError);

  // The folder that was trained on, undivided: its held-out part. Another such folder: all of it.
  for (int kind = 0; kind < 3; ++kind) write_class(folder / ("all/" + known[static_cast<std::size_t>(kind)]), kind, 12);
  const DataParts parts = open_data(options_of("image_folder", folder / "all"));
  const EvalData held =
      open_eval_data(options_of("image_folder", folder / "all"), "", parts.class_names, parts.fingerprint());
  REQUIRE(held.dataset->size() == parts.val->size());
  for (std::int64_t i = 0; i < parts.val->size(); ++i) CHECK(held.dataset->describe(i) == parts.val->describe(i));
  CHECK(held.notes.empty());
  check(open_eval_data(options_of("image_folder", folder / "all"), "", known, "other"), 36);
  // A picture more: the held-out ones can't be told any longer, and that is said.
  write_picture(folder / "all/red/more.png", small_picture(200, 40, 40, 999));
  const EvalData changed = open_eval_data(options_of("image_folder", folder / "all"), "", known, parts.fingerprint());
  check(changed, 37);
  CHECK(any_line(changed.notes, "not the folder as it was trained on; all of its 37 pictures are evaluated"));
}

TEST_CASE("CIFAR's records: planes, labels, sizes that are no multiple, labels outside the classes") {
  const TemporaryFolder folder;
  const auto record = [](const std::string& labels, int red, int green, int blue) {
    std::string bytes = labels;
    for (const int value : {red, green, blue}) bytes += std::string(1024, static_cast<char>(value));
    return bytes;
  };
  for (int batch = 1; batch <= 2; ++batch) {
    std::string bytes;
    for (int i = 0; i < 20; ++i) bytes += record(std::string(1, static_cast<char>(i % 10)), i, batch, 3);
    write_bytes(folder / ("data_batch_" + std::to_string(batch) + ".bin"), bytes);
  }
  write_bytes(folder / "test_batch.bin", record("\x06", 59, 43, 50) + record("\x03", 1, 2, 3));
  const DataParts parts = open_data(options_of("cifar10", folder.path()));
  CHECK(parts.train->size() + parts.val->size() == 40);
  CHECK(parts.test->size() == 2);
  CHECK(parts.class_names == cifar10_classes());
  CHECK(any_line(parts.notes, "40 training and 2 test pictures; the whole set has 50000 and 10000"));
  Generator generator;
  const Sample sample = parts.test->get(0, generator);
  CHECK(sample.label == 6);
  const auto pixels = sample.image.to_vector<std::uint8_t>();
  CHECK((pixels[0] == 59 && pixels[1024] == 43 && pixels[2048] == 50 && pixels.size() == 3072));
  // Of a part that wasn't asked for, nothing is said.
  CHECK(any_line(open_cifar10(folder.path(), false, "test").notes, ": 2 test pictures; the whole set has 10000"));
  CHECK(any_line(open_cifar10(folder.path(), false, "train").notes, ": 40 training pictures; the whole set has 50000"));
  const CifarParts files = open_cifar10(folder.path());
  CHECK(files.train->describe(21) == folder / "data_batch_2.bin[1]");
  CHECK(files.train->get(21, generator).image.to_vector<std::uint8_t>()[1024] == 2);

  write_bytes(folder / "data_batch_2.bin", record("\x01", 1, 1, 1) + std::string(100, 'x'));
  CHECK_THROWS_WITH_AS(open_cifar10(folder.path()),
                       Contains("data_batch_2.bin: 3173 bytes; expected a multiple of 3073"), DataError);
  write_bytes(folder / "data_batch_2.bin", record("\x0A", 1, 1, 1));
  CHECK_THROWS_WITH_AS(open_cifar10(folder.path()), Contains("data_batch_2.bin[0]: label 10 is outside the 10 classes"),
                       DataError);

  // CIFAR-100: coarse, then fine.
  std::filesystem::create_directories(folder / "hundred/cifar-100-binary");
  std::string hundred;
  for (int i = 0; i < 30; ++i) hundred += record("\x0B\x13", 1, 2, 3);
  write_bytes(folder / "hundred/cifar-100-binary/train.bin", hundred);
  write_bytes(folder / "hundred/cifar-100-binary/test.bin", record("\x0B\x13", 1, 2, 3));
  DataOptions options = options_of("cifar100", folder / "hundred");
  CHECK(open_data(options).test->label(0) == 19);
  CHECK(any_line(open_data(options).notes, "30 training and 1 test pictures; the whole set has 50000 and 10000"));
  options.coarse = true;
  CHECK(open_data(options).test->label(0) == 11);
}

TEST_CASE("the official CIFAR-10 records") {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string root = std::string(data == nullptr ? "" : data) + "/cifar-10-batches-bin";
  if (!has_cifar10(root)) return skip("sample data missing: no folder cifar-10-batches-bin in POLYGRAD_TEST_DATA");
  const CifarParts parts = open_cifar10(root);
  std::vector<std::int64_t> first, first_test;
  for (std::int64_t i = 0; i < 10; ++i) {
    first.push_back(parts.train->label(i));
    first_test.push_back(parts.test->label(i));
  }
  CHECK(first == std::vector<std::int64_t>{6, 9, 9, 4, 1, 1, 2, 7, 8, 3});
  CHECK(first_test == std::vector<std::int64_t>{3, 8, 8, 0, 6, 6, 1, 6, 3, 1});
  Generator generator;
  const auto pixels = parts.train->get(0, generator).image.to_vector<std::uint8_t>();
  CHECK(std::vector<int>(pixels.begin(), pixels.begin() + 8) == std::vector<int>{59, 43, 50, 68, 98, 119, 139, 145});
  if (parts.train->size() != 4000) return;
  CHECK(class_counts(*parts.train) == std::vector<std::int64_t>{396, 366, 420, 384, 422, 393, 414, 385, 407, 413});
  DataParts all;
  all.train = parts.train;
  all.channels = 3;
  all.class_names = parts.train->class_names();
  const DataCheck check = check_data(all);
  const std::vector<double> mean = {0.491597, 0.481759, 0.444657}, stddev = {0.247114, 0.243972, 0.262500};
  for (std::size_t c = 0; c < 3; ++c) {
    CHECK(check.mean[c] == doctest::Approx(mean[c]).epsilon(1e-5));
    CHECK(check.stddev[c] == doctest::Approx(stddev[c]).epsilon(1e-5));
  }
}

TEST_CASE("check_data counts what it finds: sizes, twins within and across classes and parts, bad pictures") {
  const TemporaryFolder folder;
  write_class(folder / "train/a", 0, 3);
  write_class(folder / "train/b", 1, 3);
  write_class(folder / "val/a", 0, 1, 90);
  write_picture(folder / "train/a/large.png", small_picture(5, 6, 7, 1, 20, 30));
  std::filesystem::copy_file(folder / "train/a/0.png", folder / "train/a/twin.png");
  std::filesystem::copy_file(folder / "train/a/1.png", folder / "train/b/twin.png");
  std::filesystem::copy_file(folder / "train/a/2.png", folder / "val/a/twin.png");
  write_bytes(folder / "train/b/cut.png", read_bytes(folder / "train/b/0.png").substr(0, 40));
  write_bytes(folder / "train/b/text.jpg", "hello");
  write_bytes(folder / "train/b/anim.gif", "GIF89a");
  const DataCheck check = check_data(open_data(options_of("image_folder", folder.path())));
  CHECK(check.pictures == 14);
  CHECK(check.bad.size() == 3);
  CHECK(check.bad_of[static_cast<int>(ImageFault::truncated)] == 1);
  CHECK(check.bad_of[static_cast<int>(ImageFault::corrupt)] == 1);
  CHECK(check.bad_of[static_cast<int>(ImageFault::unsupported)] == 1);
  CHECK(check.same_class == 1);
  CHECK(check.other_class == 1);
  CHECK(check.other_part == 1);
  for (const char* text : {"widths 8 to 30 (median 8), heights 8 to 20", "cut.png (40 bytes): truncated",
                           "GIF; convert it", "can't be used: 3 of 14", "a           5       2", "time: "}) {
    CHECK_MESSAGE(check.report.find(text) != std::string::npos, check.report);
  }
}

TEST_CASE("the real Tiny-ImageNet: 200 classes, 50 validation pictures each, every one decodes to 64 x 64") {
  const std::string root = tiny_imagenet();
  if (root.empty()) return skip("sample data missing: no folder tiny-imagenet-200 in POLYGRAD_TEST_DATA");
  const DataParts parts = open_data(options_of("tiny_imagenet", root));
  CHECK(parts.class_names.size() == 200);
  CHECK(parts.val->size() == 10000);
  for (const std::int64_t count : class_counts(*parts.val)) CHECK(count == 50);
  CHECK(parts.train->size() >= 25000);
  CHECK(std::is_sorted(parts.class_names.begin(), parts.class_names.end()));
  Generator generator;
  for (std::int64_t i = 0; i < parts.val->size(); i += 10) {
    REQUIRE(parts.val->get(i, generator).image.shape() == Shape{3, 64, 64});
  }
}
