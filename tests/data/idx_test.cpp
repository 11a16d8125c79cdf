// IDX and gzip files, good and bad, built byte by byte.
#include "data/idx.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "data/inflate.h"
#include "engine/error.h"
#include "tests/data/file_bytes.h"
#include "tests/support/isolation.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using doctest::Contains;
using testing::big_endian_bytes;
using testing::gzip_bytes;
using testing::idx_bytes;
using testing::little_endian_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

TEST_CASE("each element type is read, big-endian and with its sign") {
  const Tensor u8 = parse_idx(idx_bytes(0x08, {2, 3}, "\x01\x02\x03\x04\x05\xFF"), "a");
  CHECK(u8.shape() == Shape{2, 3});
  CHECK(u8.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{1, 2, 3, 4, 5, 255});

  const Tensor i8 = parse_idx(idx_bytes(0x09, {3}, "\x01\xFF\x80"), "a");
  CHECK(i8.to_vector<std::int32_t>() == std::vector<std::int32_t>{1, -1, -128});

  const Tensor i16 = parse_idx(idx_bytes(0x0B, {2}, big_endian_bytes(0x0102, 2) + big_endian_bytes(0xFFFE, 2)), "a");
  CHECK(i16.to_vector<std::int32_t>() == std::vector<std::int32_t>{258, -2});

  const Tensor i32 = parse_idx(idx_bytes(0x0C, {2}, big_endian_bytes(7, 4) + big_endian_bytes(0xFFFFFFFD, 4)), "a");
  CHECK(i32.to_vector<std::int32_t>() == std::vector<std::int32_t>{7, -3});

  const Tensor f32 =
      parse_idx(idx_bytes(0x0D, {2}, big_endian_bytes(0x3F800000, 4) + big_endian_bytes(0xC0200000, 4)), "a");
  CHECK(f32.to_vector<float>() == std::vector<float>{1.0f, -2.5f});

  const Tensor f64 = parse_idx(idx_bytes(0x0E, {1}, big_endian_bytes(0x400921FB54442D18, 8)), "a");
  CHECK(f64.to_vector<double>() == std::vector<double>{3.141592653589793});

  CHECK(parse_idx(idx_bytes(0x08, {0, 28, 28}, ""), "a").shape() == Shape{0, 28, 28});
}

TEST_CASE("gzip is recognised by its first bytes, whatever the file is called") {
  const TemporaryFolder folder;
  const std::string plain = idx_bytes(0x08, {5}, "hello");
  for (const char* name : {"labels.gz", "labels", "labels.idx"}) {
    write_bytes(folder / name, gzip_bytes(plain));
    CHECK(read_idx(folder / name).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{'h', 'e', 'l', 'l', 'o'});
  }
  write_bytes(folder / "plain.gz", plain);
  CHECK(read_idx(folder / "plain.gz").numel() == 5);
}

TEST_CASE("optional fields of a gzip header are skipped") {
  const std::string extra = std::string("\x03\x00", 2) + "abc";
  const std::string name("labels\0", 7), comment("a comment\0", 10), header_crc("\x12\x34", 2);
  const std::vector<char> content =
      gunzip(gzip_bytes("hello", 2 | 4 | 8 | 16, extra + name + comment + header_crc), "a");
  CHECK(std::string(content.data(), content.size()) == "hello");
  CHECK(gunzip(gzip_bytes(""), "a").empty());
}

TEST_CASE("a damaged gzip file is named, with what is wrong") {
  const std::string good = gzip_bytes("hello");
  CHECK_THROWS_WITH_AS(gunzip("hello, this is text", "a.gz"),
                       "[gunzip] a.gz: not a gzip file; expected it to begin with 1f 8b", DataError);
  CHECK_THROWS_WITH_AS(gunzip(good.substr(0, 12), "a.gz"), "[gunzip] a.gz: the gzip header is cut short", DataError);

  std::string flipped = good;
  flipped[16] ^= 1;  // in the content
  CHECK_THROWS_WITH_AS(gunzip(flipped, "a.gz"), Contains("[gunzip] a.gz: CRC-32 is "), DataError);

  std::string cut = good;
  cut.erase(17, 2);
  CHECK_THROWS_WITH_AS(gunzip(cut, "a.gz"), Contains("[gunzip] a.gz: "), DataError);

  CHECK_THROWS_WITH_AS(gunzip(good + gzip_bytes("more of it"), "a.gz"), Contains("more than one gzip member"),
                       DataError);

  std::string method = good;
  method[2] = 7;
  CHECK_THROWS_WITH_AS(gunzip(method, "a.gz"), "[gunzip] a.gz: gzip compression method 7; expected 8 (deflate)",
                       DataError);

  CHECK_THROWS_WITH_AS(gunzip(gzip_bytes("", 8, std::string(3, 'x')), "a.gz"), Contains("[gunzip] a.gz: "), DataError);
}

TEST_CASE("a trailer that promises gigabytes allocates none of them") {
  std::string lying = gzip_bytes("hello");
  lying.replace(lying.size() - 4, 4, little_endian_bytes(0xFFFFFFFF, 4));
  CHECK_THROWS_WITH_AS(
      gunzip(lying, "a.gz"),
      "[gunzip] a.gz: the gzip trailer promises 4294967295 bytes, more than 10 compressed ones can hold; "
      "damaged or cut short",
      DataError);
}

TEST_CASE("malformed IDX files: the file, what is wrong, what was expected") {
  const auto text_of = [](const std::string& bytes) -> std::string {
    try {
      parse_idx(bytes, "train-images");
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  };
  CHECK(text_of("") == "[idx] train-images: 0 bytes are too few for an IDX header");
  CHECK(
      text_of("not an IDX file") ==
      "[idx] train-images: not an IDX file: it begins with 6e6f7420; expected 0000TTDD with type TT 08, 09, 0b, 0c, 0d "
      "or 0e");
  CHECK(
      text_of(idx_bytes(0x0A, {1}, "x")) ==
      "[idx] train-images: not an IDX file: it begins with 00000a01; expected 0000TTDD with type TT 08, 09, 0b, 0c, 0d "
      "or 0e");
  CHECK(text_of(idx_bytes(0x08, {}, "")) == "[idx] train-images: 0 dimensions; expected 1 to 8");
  CHECK(text_of(idx_bytes(0x08, std::vector<std::uint32_t>(9, 1), "x")) ==
        "[idx] train-images: 9 dimensions; expected 1 to 8");
  CHECK(text_of(idx_bytes(0x08, {2, 3}, "").substr(0, 9)) ==
        "[idx] train-images: cut short in its header: 9 bytes of 12");
  CHECK(text_of(idx_bytes(0x08, {2, 3}, "12345")) ==
        "[idx] train-images: cut short: the header says (2, 3) elements of 1 bytes, the file has 5 bytes of them");
  CHECK(text_of(idx_bytes(0x0C, {2},
                          "12345678"
                          "x")) == "[idx] train-images: 1 bytes too long: the header says (2) elements of 4 bytes");
  CHECK(text_of(gzip_bytes(gzip_bytes(idx_bytes(0x08, {1}, "x")))) == "[idx] train-images: gzipped twice");
}

TEST_CASE("huge sizes that hide behind a size of 0") {
  const TemporaryFolder folder;
  const std::string images = folder / "train-images-idx3-ubyte";
  write_bytes(images, idx_bytes(0x08, {0, 0xFFFFFFFFu, 0xFFFFFFFFu}, ""));  // 16 bytes
  write_bytes(folder / "labels", idx_bytes(0x08, {0}, ""));
  const std::string text = "[idx] " + images + ": the header says (0, 4294967295, 4294967295) elements: no such array";
  CHECK_THROWS_WITH_AS(IdxDataset("tiny", images, folder / "labels"), Contains(text.c_str()), DataError);
  for (const auto& sizes : {std::vector<std::uint32_t>{0xFFFFFFFFu, 0xFFFFFFFFu, 0},
                            std::vector<std::uint32_t>{0xFFFFFFFFu, 0, 0xFFFFFFFFu, 2}}) {
    for (const int type : {0x08, 0x0C, 0x0E}) CHECK_THROWS_AS(parse_idx(idx_bytes(type, sizes, ""), "a"), DataError);
  }
  CHECK(parse_idx(idx_bytes(0x08, {0, 0xFFFFFFFFu, 2}, ""), "a").numel() == 0);
}

TEST_CASE("sizes whose product is beyond 2^40, or beyond 64 bits, are refused before anything is allocated") {
  for (const auto& sizes :
       {std::vector<std::uint32_t>{1u << 20, 1u << 20, 2}, std::vector<std::uint32_t>(5, 0xFFFFFFFFu),
        std::vector<std::uint32_t>{1u << 31, 1u << 31, 4}}) {
    const int code = testing::run_in_child([&] {
      testing::limit_further_memory(std::size_t{64} << 20);
      try {
        parse_idx(idx_bytes(0x08, sizes, "few"), "a");
      } catch (const DataError& error) {
        return std::string(error.what()).find("cut short: the header says") != std::string::npos ? 0 : 1;
      }
      return 2;
    });
    CHECK(code == 0);
  }
}

TEST_CASE("a missing file is a DataError that names it") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_idx(folder / "none"), Contains((folder / "none").c_str()), DataError);
}

namespace {

// Four 2 x 2 images with labels 0, 1, 2, 1.
std::string images_of(std::uint32_t count) {
  std::string pixels;
  for (std::uint32_t i = 0; i < count * 4; ++i) pixels += static_cast<char>(i * 16);
  return idx_bytes(0x08, {count, 2, 2}, pixels);
}

}  // namespace

TEST_CASE("a data set gives images, labels and the statistics of its pixels") {
  const TemporaryFolder folder;
  write_bytes(folder / "images", images_of(4));
  write_bytes(folder / "labels", idx_bytes(0x08, {4}, std::string("\0\1\2\1", 4)));
  const IdxDataset data("tiny", folder / "images", folder / "labels");
  CHECK(data.size() == 4);
  CHECK(data.class_names() == std::vector<std::string>{"0", "1", "2"});
  Generator generator(1);
  const Sample sample = data.get(1, generator);
  CHECK(sample.label == 1);
  CHECK(sample.image.shape() == Shape{1, 2, 2});
  CHECK(sample.image.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{64, 80, 96, 112});
  CHECK(data.mean() == doctest::Approx(120.0 / 255));  // of 0, 16, ... 240
  CHECK(data.stddev() == doctest::Approx(16 * std::sqrt(21.25) / 255));
  CHECK(data.describe(3) == folder / "images" + "[3]");
  CHECK(class_counts(data) == std::vector<std::int64_t>{1, 2, 1});
  CHECK_THROWS_AS(data.get(4, generator), IndexError);
  CHECK_THROWS_AS(data.label(-1), IndexError);
}

TEST_CASE("the image of one call is not shared with the next") {
  const TemporaryFolder folder;
  write_bytes(folder / "images", images_of(1));
  write_bytes(folder / "labels", idx_bytes(0x08, {1}, std::string(1, '\0')));
  const IdxDataset data("tiny", folder / "images", folder / "labels");
  Generator generator(1);
  Sample first = data.get(0, generator);
  first.image.fill_(7);
  CHECK(data.get(0, generator).image.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 16, 32, 48});
}

TEST_CASE("labels of 32 bits are big-endian") {
  const TemporaryFolder folder;
  write_bytes(folder / "images", images_of(2));
  write_bytes(folder / "labels", idx_bytes(0x0C, {2}, big_endian_bytes(3, 4) + big_endian_bytes(0, 4)));
  const IdxDataset data("tiny", folder / "images", folder / "labels");
  CHECK(data.label(0) == 3);
  CHECK(data.classes() == 4);
}

TEST_CASE("what does not fit together is named with both files and both counts") {
  const TemporaryFolder folder;
  const std::string images = folder / "images", labels = folder / "labels";
  const auto text_of = [&](const std::string& image_bytes, const std::string& label_bytes,
                           std::vector<std::string> classes = {}) -> std::string {
    write_bytes(images, image_bytes);
    write_bytes(labels, label_bytes);
    try {
      const IdxDataset data("tiny", images, labels, std::move(classes));
    } catch (const DataError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string three = idx_bytes(0x08, {3}, std::string("\0\1\2", 3));
  CHECK(text_of(images_of(4), three) == "[idx] " + labels + ": 3 labels for the 4 images of " + images);
  CHECK(text_of(three, three) == "[idx] " + images + ": u8 (3); expected u8 images (count, height, width)");
  CHECK(text_of(idx_bytes(0x0D, {1, 1, 1}, "1234"), three) ==
        "[idx] " + images + ": f32 (1, 1, 1); expected u8 images (count, height, width)");
  CHECK(text_of(images_of(4), images_of(4)) == "[idx] " + labels + ": u8 (4, 2, 2); expected a list of integer labels");
  CHECK(text_of(images_of(3), three, {"cat", "dog"}) ==
        "[idx] " + labels + ": label 2 of sample 2 is outside the 2 classes");
  CHECK(text_of(images_of(1), idx_bytes(0x0C, {1}, "\xFF\xFF\xFF\xFF")) ==
        "[idx] " + labels + ": label -1 of sample 0 is outside the 0 classes");
  CHECK(text_of(images_of(1), idx_bytes(0x0C, {1}, "\x7F\xFF\xFF\xFF")) ==
        "[idx] " + labels + ": label 2147483647 of sample 0 is outside the 1048577 classes");
  CHECK(text_of(images_of(0), idx_bytes(0x08, {0}, "")) == "[idx] " + images + ": holds no images");
}

TEST_CASE("the fingerprint changes with labels, pixels and sizes") {
  const TemporaryFolder folder;
  const auto fingerprint = [&](const std::string& image_bytes, const std::string& label_bytes) {
    write_bytes(folder / "images", image_bytes);
    write_bytes(folder / "labels", label_bytes);
    return IdxDataset("tiny", folder / "images", folder / "labels").fingerprint();
  };
  const std::string labels = idx_bytes(0x08, {2}, std::string("\0\1", 2));
  const std::string base = fingerprint(images_of(2), labels);
  CHECK(base == fingerprint(images_of(2), labels));
  CHECK(base.substr(0, 25) == "tiny 2x1x2x2 2 classes, l");
  CHECK(base != fingerprint(images_of(2), idx_bytes(0x08, {2}, std::string("\1\0", 2))));
  std::string other = images_of(2);
  other.back() ^= 1;
  CHECK(base != fingerprint(other, labels));
  other = images_of(2);
  std::swap(other[16], other[17]);  // the same pixels in another order
  CHECK(base != fingerprint(other, labels));
}

TEST_CASE("MNIST's own files are read: 60,000 images, known first labels") {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  if (data == nullptr) return testing::skip("sample data missing: POLYGRAD_TEST_DATA is not set");
  const std::string root = std::string(data) + "/mnist";
  if (!std::filesystem::exists(root))
    return testing::skip("sample data missing: no folder mnist in POLYGRAD_TEST_DATA");
  const IdxDataset train("mnist", root + "/train-images-idx3-ubyte", root + "/train-labels-idx1-ubyte");
  CHECK(train.size() == 60000);
  CHECK(train.classes() == 10);
  CHECK(train.label(0) == 5);
  CHECK(train.label(1) == 0);
  CHECK(train.label(59999) == 8);
  CHECK(train.mean() == doctest::Approx(0.1307).epsilon(1e-3));
  CHECK(train.stddev() == doctest::Approx(0.3081).epsilon(1e-3));
  const std::string images = root + "/t10k-first3000-images-idx3-ubyte";
  const IdxDataset test("mnist", images, root + "/t10k-first3000-labels-idx1-ubyte");
  CHECK(test.size() == 3000);
  CHECK(test.label(0) == 7);
  const std::string all_labels = root + "/t10k-labels-idx1-ubyte";
  CHECK_THROWS_WITH_AS(IdxDataset("mnist", images, all_labels),
                       ("[idx] " + all_labels + ": 10000 labels for the 3000 images of " + images).c_str(), DataError);
}
