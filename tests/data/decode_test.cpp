// Decoding: every odd picture by name, hostile headers, EXIF, end marks, and what two decoders agree on.
#include "data/decode.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "data/color.h"
#include "data/jpeg.h"
#include "data/png.h"
#include "data/resize.h"
#include "engine/generator.h"
#include "tests/data/file_bytes.h"
#include "tests/support/isolation.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;

namespace {

std::string odd_images() {
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string folder = std::string(data == nullptr ? "" : data) + "/odd-images";
  return std::filesystem::is_directory(folder) ? folder : "";
}

#define NEEDS_ODD_IMAGES                                                            \
  const std::string odd = odd_images();                                             \
  if (odd.empty()) {                                                                \
    return skip("sample data missing: no folder odd-images in POLYGRAD_TEST_DATA"); \
  }

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream stream(line);
  for (std::string part; std::getline(stream, part, '\t');) parts.push_back(part);
  parts.resize(10);
  return parts;
}

std::vector<double> means(const Tensor& image) {
  const auto pixels = image.to_vector<std::uint8_t>();
  const std::size_t plane = pixels.size() / static_cast<std::size_t>(image.size(0));
  std::vector<double> result;
  for (std::size_t c = 0; c < pixels.size() / plane; ++c) {
    double sum = 0;
    for (std::size_t i = 0; i < plane; ++i) sum += pixels[c * plane + i];
    result.push_back(sum / static_cast<double>(plane));
  }
  return result;
}

std::string format_size(const Tensor& image) {
  return std::to_string(image.size(2)) + "x" + std::to_string(image.size(1));
}

// "ok", or the fault's name.
std::string outcome(const std::string& bytes, const DecodeOptions& options = {}, Tensor* image = nullptr) {
  try {
    const Tensor decoded = decode_image(bytes, "picture", options);
    if (image) *image = decoded;
    return "ok";
  } catch (const ImageError& error) {
    return to_string(error.fault());
  }
}

Tensor noise(std::int64_t height, std::int64_t width) {
  Generator generator(3);
  std::vector<std::uint8_t> pixels;
  for (std::int64_t i = 0; i < 3 * height * width; ++i)
    pixels.push_back(static_cast<std::uint8_t>(generator.next_u32()));
  return Tensor::from_vector(pixels, Shape{3, height, width});
}

std::string png_chunk(const std::string& name, const std::string& content) {
  return big_endian_bytes(content.size(), 4) + name + content + big_endian_bytes(bitwise_crc32(name + content), 4);
}

std::string png_header(std::uint64_t width, std::uint64_t height) {
  return "\x89PNG\r\n\x1A\n" +
         png_chunk("IHDR", big_endian_bytes(width, 4) + big_endian_bytes(height, 4) + std::string("\x08\x02\0\0\0", 5));
}

// Pillow opens these and we do not, or the other way round: each for a reason that is named.
const std::map<std::string, std::string> kOtherThanPillow = {
    {"pillow/hopper.gif", "unsupported"},
    {"pillow/hopper.webp", "unsupported"},
    {"pillow/broken_data_stream.png", "corrupt"},     // Pillow leaves the undecodable rows black
    {"pillow/png_decompression_dos.png", "ok"},       // the bomb is in a comment, which is not unpacked here
    {"pillow/unknown_compression_method.png", "ok"},  // of a comment
    {"pillow/truncated_exif_dpi.jpg", "ok"},          // a malformed EXIF block
};

}  // namespace

TEST_CASE("each of the odd pictures has the outcome that its manifest says") {
  NEEDS_ODD_IMAGES
  const bool turbo = jpeg_decoder_name() == std::string("libjpeg-turbo");
  std::ifstream manifest(odd + "/MANIFEST.tsv");
  std::string line;
  std::getline(manifest, line);
  std::map<std::string, int> outcomes;
  int pictures = 0;
  std::vector<std::string> refused;
  while (std::getline(manifest, line)) {
    const std::vector<std::string> row = fields(line);
    const std::string& file = row[0];
    CAPTURE(file);
    ++pictures;
    std::string got = "ok";
    Tensor image;
    try {
      image = read_image(odd + "/" + file);
    } catch (const ImageError& error) {
      got = to_string(error.fault());
      CHECK_MESSAGE(std::string(error.what()).find(file) != std::string::npos, error.what());
    }
    ++outcomes[got];
    if (got == "unsupported") refused.push_back(file);
    const bool fuzzed = file.rfind("jpeg-corrupt/", 0) == 0;  // an error or an image: decoders may differ
    if (const auto other = kOtherThanPillow.find(file); other != kOtherThanPillow.end()) {
      CHECK(got == other->second);
      continue;
    }
    if (!fuzzed && (turbo || row[3] != "JPEG")) CHECK((got == "ok") == (row[2] == "ok"));
    if (got != "ok" || row[2] != "ok") continue;
    CHECK(format_size(image) == row[5]);
    if (file.find("iphone") != std::string::npos) continue;  // Pillow reads Apple's PNG as black
    const std::vector<double> mean = means(image);
    std::istringstream expected(row[8]);
    for (std::size_t c = 0; c < 3; ++c) {
      std::string number;
      std::getline(expected, number, ',');
      CHECK(std::abs(mean[c] - std::stod(number)) <= (row[3] != "JPEG" ? 0.01 : turbo ? 0.5 : 8));
    }
  }
  CHECK(pictures >= 400);
  CHECK(outcomes["ok"] >= (turbo ? 290 : 280));
  CHECK(outcomes["empty"] == 1);
  std::sort(refused.begin(), refused.end());
  CHECK(refused == std::vector<std::string>{"jpeg-corrupt/invalid-prediction-shift.jpg",  // lossless, as the next
                                            "jpeg-reftest/jpeg_lossless_sel2.jpg", "pillow/hopper.gif",
                                            "pillow/hopper.webp"});
}

TEST_CASE("Apple's PNG shows what the plain one shows") {
  NEEDS_ODD_IMAGES
  for (const char* name : {"basi0g01", "basi0g02", "basi3p02"}) {
    CAPTURE(name);
    const Tensor apple = read_image(odd + "/pngsuite/iphone/iphone_" + name + ".png");
    const Tensor plain = read_image(odd + "/pngsuite/primary/" + name + ".png");
    CHECK(apple.to_vector<std::uint8_t>() == plain.to_vector<std::uint8_t>());
  }
}

TEST_CASE("what a progressive JPEG lacks is zero for both decoders, not what the memory held before") {
  NEEDS_ODD_IMAGES
  const std::string file = odd + "/jpeg-reftest/progressive-missing-dc.jpg";
  const std::vector<double> expected = means(read_image(file));
  for (int fill = 0; fill < 2; ++fill) {
    std::vector<std::vector<char>> used;
    for (std::size_t bytes = 1 << 10; bytes <= 1 << 18; bytes *= 2) used.emplace_back(bytes, fill == 0 ? 'U' : '\x13');
    used.clear();
    const std::vector<double> got = means(read_image(file, {.jpeg = JpegDecoder::stb}));
    for (std::size_t c = 0; c < 3; ++c) CHECK(std::abs(got[c] - expected[c]) <= 8);
  }
}

TEST_CASE("no odd picture takes much memory") {
  NEEDS_ODD_IMAGES
  const int code = run_in_child([&] {
    limit_further_memory(std::size_t{192} << 20);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(odd)) {
      if (!entry.is_regular_file()) continue;
      for (const JpegDecoder jpeg : {JpegDecoder::best, JpegDecoder::stb}) {
        try {
          read_image(entry.path().string(), {.jpeg = jpeg});
        } catch (const ImageError&) {
        }
      }
    }
    return 0;
  });
  CHECK(code == 0);
}

TEST_CASE("headers that promise what their bytes can't hold") {
  const std::string data = png_chunk("IDAT", std::string("\x78\x9C\x63\0\0\0\x01\0\x01", 9)),
                    end = png_chunk("IEND", "");
  CHECK(outcome(png_header(100000, 100000) + data + end) == "too large");
  CHECK(outcome(png_header(0xFFFFFFFF, 0xFFFFFFFF) + data + end) == "too large");
  CHECK(outcome(png_header(10000, 10000) + data + end) == "truncated");
  CHECK(outcome(png_header(0, 5) + data + end) == "corrupt");
  CHECK(outcome(png_header(5, 5) + end) == "corrupt");
  CHECK(outcome(png_header(5, 5)) == "truncated");
  CHECK(outcome(png_header(5, 5) + data.substr(0, 15)) == "truncated");
  CHECK(outcome(png_header(5, 5) + data + end) == "corrupt");
  CHECK(outcome("\x89PNG\r\n\x1A\n") == "truncated");
  CHECK(outcome("") == "empty");
  CHECK(outcome("\xFF\xD8") == "truncated");
  CHECK(outcome("\xFF\xD8\xFF") == "truncated");
  CHECK(outcome("\xFF\xD8\xFF\xD9") == "corrupt");
  CHECK(outcome("hello") == "corrupt");
  CHECK(outcome("GIF89a......") == "unsupported");
  CHECK(outcome(std::string("RIFF\x10\0\0\0WEBPVP8 ", 16)) == "unsupported");
  const auto frame = [](int marker, int bits, int height, int width) {
    return "\xFF" + std::string(1, static_cast<char>(marker)) + big_endian_bytes(11, 2) +
           std::string(1, static_cast<char>(bits)) + big_endian_bytes(static_cast<std::uint64_t>(height), 2) +
           big_endian_bytes(static_cast<std::uint64_t>(width), 2) + std::string("\x01\x01\x11\0", 4);
  };
  const std::string scan = std::string("\xFF\xDA\0\x08\x01\x01\0\0\x3F\0", 10), stop = "\xFF\xD9";
  CHECK(outcome("\xFF\xD8" + frame(0xC0, 8, 65535, 65535) + scan + stop) == "too large");
  CHECK(outcome("\xFF\xD8" + frame(0xC2, 8, 10000, 10000) + scan + stop) == "truncated");
  CHECK(outcome("\xFF\xD8" + frame(0xC0, 8, 0, 5) + scan + stop) == "corrupt");
  for (const JpegDecoder jpeg : {JpegDecoder::best, JpegDecoder::stb}) {  // no tables
    CHECK(outcome("\xFF\xD8" + frame(0xC0, 8, 5, 5) + scan + stop, {.jpeg = jpeg}) == "corrupt");
  }
  CHECK(outcome("\xFF\xD8" + frame(0xC3, 8, 5, 5) + scan + stop) == "unsupported");
  CHECK(outcome("\xFF\xD8" + frame(0xC1, 12, 5, 5) + scan + stop) == "unsupported");
  CHECK(outcome("\xFF\xD8" + frame(0xC1, 9, 5, 5) + scan + stop) == "corrupt");
  CHECK(outcome(std::string("BM") + std::string(28, '\0')) == "truncated");
  CHECK(outcome(std::string("BM") + std::string(32, '\0')) == "corrupt");
  const auto bmp = [](std::uint64_t bits, std::uint64_t compression, std::size_t bytes) {
    return "BM" + std::string(8, '\0') + little_endian_bytes(54, 4) + little_endian_bytes(40, 4) +
           little_endian_bytes(5, 4) + little_endian_bytes(4, 4) + little_endian_bytes(1, 2) +
           little_endian_bytes(bits, 2) + little_endian_bytes(compression, 4) + std::string(20, '\0') +
           std::string(bytes, '\x40');
  };
  CHECK(outcome(bmp(24, 0, 64)) == "ok");
  CHECK(outcome(bmp(24, 0, 63)) == "truncated");
  const std::string old_bmp = "BM" + std::string(8, '\0') + little_endian_bytes(26, 4) + little_endian_bytes(12, 4) +
                              little_endian_bytes(1, 2) + little_endian_bytes(1, 2) + little_endian_bytes(1, 2) +
                              little_endian_bytes(24, 2);
  CHECK(outcome(old_bmp + "abc ") == "ok");
  CHECK(outcome(old_bmp) == "truncated");
  CHECK(outcome(bmp(8, 1, 12)) == "unsupported");  // run lengths: shorter than the pixels, and not cut
  CHECK(outcome("P3\n1 1 255\n1 2 3\n") == "unsupported");
  CHECK(outcome("P35 is no picture") == "corrupt");
  CHECK(outcome("P6 30000 30000 255\n") == "too large");
  CHECK(outcome("P6 3000 3000 255\n") == "truncated");
  CHECK_THROWS_WITH_AS(
      decode_image("hello", "some/file.jpg"),
      "[image] some/file.jpg (5 bytes): corrupt: not a JPEG, PNG, BMP or PNM file, whatever its name says", ImageError);
}

TEST_CASE("a stream that unpacks to far more than its header says is stopped") {
  const std::string large =
      png_bytes(Tensor::from_vector(std::vector<std::uint8_t>(12 << 20, 7), Shape{3, 2048, 2048}));
  const std::string bomb = png_header(4, 4) + large.substr(8 + 25);  // behind its own header
  const int code = run_in_child([&] {
    limit_further_memory(std::size_t{8} << 20);
    return outcome(bomb) == "corrupt" ? 0 : 1;
  });
  CHECK(code == 0);
}

TEST_CASE("files that can't be read have their path and the system's reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_image(folder / "none.png"), Contains("none.png: unreadable: No such file"), ImageError);
  CHECK_THROWS_WITH_AS(read_image(folder.path()), Contains("unreadable: not a file"), ImageError);
  write_bytes(folder / "zero.jpg", "");
  CHECK_THROWS_WITH_AS(read_image(folder / "zero.jpg"), Contains("zero.jpg: empty: the file has no bytes"), ImageError);
}

TEST_CASE("what was written as PNG is read back, and damage at any byte is an error or a picture") {
  const Tensor image = noise(13, 7);
  const std::string bytes = png_bytes(image);
  Tensor back;
  CHECK(outcome(bytes, {}, &back) == "ok");
  CHECK(back.to_vector<std::uint8_t>() == image.to_vector<std::uint8_t>());
  CHECK(outcome(bytes, {.grey = true}, &back) == "ok");
  CHECK(back.to_vector<std::uint8_t>() == to_grey(image).to_vector<std::uint8_t>());
  // Without its end chunk all its pixels are there.
  CHECK(outcome(bytes.substr(0, bytes.size() - 12), {}, &back) == "ok");
  CHECK(back.to_vector<std::uint8_t>() == image.to_vector<std::uint8_t>());
  CHECK(outcome(bytes.substr(0, bytes.size() - 13)) == "truncated");
  for (std::size_t length = 0; length < bytes.size() - 12; ++length) CHECK(outcome(bytes.substr(0, length)) != "ok");
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    outcome(damaged);  // anything but a crash
  }
}

TEST_CASE("cut and damaged JPEGs: an error for every cut, no crash for any damage") {
  NEEDS_ODD_IMAGES
  const std::string progressive = "/jpeg-reftest/mozilla/jpg-progressive.jpg",
                    cmyk = "/jpeg-reftest/mozilla/jpg-cmyk-1.jpg";
  for (const std::string& file : {std::string("/jpeg-reftest/restarts.jpg"), progressive, cmyk}) {
    CAPTURE(file);
    const std::string bytes = read_bytes(odd + file);
    for (const JpegDecoder jpeg : {JpegDecoder::best, JpegDecoder::stb}) {
      for (std::size_t length = 0; length < bytes.size(); ++length) {
        CHECK(outcome(bytes.substr(0, length), {.jpeg = jpeg}) != "ok");
      }
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        std::string damaged = bytes;
        damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
        outcome(damaged, {.jpeg = jpeg});
      }
    }
  }
}

TEST_CASE("fill bytes, and junk behind the end mark, change nothing") {
  NEEDS_ODD_IMAGES
  const std::string bytes = read_bytes(odd + "/pillow/hopper.jpg");
  Tensor clean, dirty;
  REQUIRE(outcome(bytes, {}, &clean) == "ok");
  const std::size_t tables = bytes.find("\xFF\xDB");
  for (const std::string& other :
       {bytes + std::string(16, 'x'), bytes + std::string(16, '\0'),
        bytes.substr(0, tables) + "\xFF\xFF\xFF" + bytes.substr(tables),
        bytes.substr(0, bytes.size() - 2) + "\xFF\xFF\xFF" + bytes.substr(bytes.size() - 2)}) {
    REQUIRE(outcome(other, {}, &dirty) == "ok");
    CHECK(dirty.to_vector<std::uint8_t>() == clean.to_vector<std::uint8_t>());
  }
}

TEST_CASE("EXIF: the eight orientations show one picture, where they are asked for") {
  NEEDS_ODD_IMAGES
  const auto small = [&](int orientation, bool exif) {
    const std::string file = odd + "/pillow/hopper_orientation_" + std::to_string(orientation) + ".jpg";
    const auto pixels = resize(read_image(file, {.exif = exif}), 8, 8).to_vector<std::uint8_t>();
    return std::vector<int>(pixels.begin(), pixels.end());
  };
  const auto farthest = [](const std::vector<int>& a, const std::vector<int>& b) {
    int most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  };
  const auto reference_pixels = resize(read_image(odd + "/pillow/hopper.jpg"), 8, 8).to_vector<std::uint8_t>();
  const std::vector<int> reference(reference_pixels.begin(), reference_pixels.end());
  for (int orientation = 2; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    CHECK(farthest(small(orientation, true), reference) < 12);  // they were compressed anew
    CHECK(farthest(small(orientation, false), reference) > 50);
  }
  // 2 x 1 pixels stand up when turned.
  CHECK(read_image(odd + "/pillow/orientation_rectangle.jpg").size(1) == 1);
  CHECK(read_image(odd + "/pillow/orientation_rectangle.jpg", {.exif = true}).size(1) == 2);
}

TEST_CASE("an orientation is read in both byte orders, and ignored where its block is malformed") {
  const Tensor image = Tensor::from_vector<std::uint8_t>({1, 2, 3, 4, 5, 6}, Shape{1, 2, 3});
  const auto turned = [&](int orientation) { return orient(image, orientation).to_vector<std::uint8_t>(); };
  using Bytes = std::vector<std::uint8_t>;
  CHECK(turned(1) == Bytes{1, 2, 3, 4, 5, 6});
  CHECK(turned(2) == Bytes{3, 2, 1, 6, 5, 4});
  CHECK(turned(3) == Bytes{6, 5, 4, 3, 2, 1});
  CHECK(turned(4) == Bytes{4, 5, 6, 1, 2, 3});
  CHECK(turned(5) == Bytes{1, 4, 2, 5, 3, 6});
  CHECK(turned(6) == Bytes{4, 1, 5, 2, 6, 3});
  CHECK(turned(7) == Bytes{6, 3, 5, 2, 4, 1});
  CHECK(turned(8) == Bytes{3, 6, 2, 5, 1, 4});
  const auto entry = [](bool big, std::uint64_t value) {
    const auto number = [big](std::uint64_t v, int n) {
      return big ? big_endian_bytes(v, n) : little_endian_bytes(v, n);
    };
    return (big ? std::string("MM") : std::string("II")) + number(42, 2) + number(8, 4) + number(1, 2) +
           number(0x0112, 2) + number(3, 2) + number(1, 4) + number(value, 2) + std::string(2, '\0');
  };
  CHECK(exif_orientation(entry(true, 6)) == 6);
  CHECK(exif_orientation(entry(false, 8)) == 8);
  CHECK(exif_orientation(entry(false, 9)) == 1);
  for (const bool big : {true, false}) {
    const std::string block = entry(big, 6);
    for (std::size_t length = 0; length < block.size() - 2; ++length)
      CHECK(exif_orientation(block.substr(0, length)) == 1);
    for (std::size_t i = 0; i < block.size(); ++i) {
      std::string damaged = block;
      damaged[i] = static_cast<char>(damaged[i] ^ 0xFF);
      const int orientation = exif_orientation(damaged);
      CHECK((orientation >= 1 && orientation <= 8));
    }
  }
}

TEST_CASE("threads decode valid and broken files side by side: the same pictures, each error of its own file") {
  NEEDS_ODD_IMAGES
  const std::vector<std::string> files = {"pillow/hopper.jpg", "pillow/hopper.png", "disguised/hopper_cut_3206.jpg",
                                          "pngsuite/corrupt/xcrn0g04.png"};
  const auto results = [&](const std::string& file) {
    try {
      const auto pixels = read_image(odd + "/" + file).to_vector<std::uint8_t>();
      return std::string(pixels.begin(), pixels.end());
    } catch (const ImageError& error) {
      return std::string(error.what());
    }
  };
  std::vector<std::string> expected;
  for (const std::string& file : files) expected.push_back(results(file));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 20; ++i)
        wrong[t] += results(files[(i + t) % files.size()]) != expected[(i + t) % files.size()];
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("a picture too large for the PNG writer is refused, not cut") {
  std::uint8_t byte = 0;  // nothing behind it is read
  const Tensor huge = Tensor::from_blob(&byte, Shape{1, 40000, 40000}, DType::u8);
  CHECK_THROWS_WITH_AS(write_png("none.png", huge), Contains("expected at most 268435456 bytes"), ValueError);
}

TEST_CASE("every letter is drawn whole: twice the same, it looks twice the same") {
  for (char letter = '!'; letter <= '~'; ++letter) {
    const std::string text(2, letter);
    const std::int64_t width = text_width(text), half = width / 2;
    Tensor twice = Tensor::from_vector(std::vector<std::uint8_t>(static_cast<std::size_t>(3 * kTextHeight * width)),
                                       {3, kTextHeight, width});
    draw_text(twice, text, 0, 0, 1, 255, 255, 255);
    int different = 0;
    for (std::int64_t i = 0; i < kTextHeight * half; ++i) {
      const std::int64_t at = i / half * width + i % half;
      different += twice.data<std::uint8_t>()[at] != twice.data<std::uint8_t>()[at + half];
    }
    CHECK_MESSAGE(different == 0, letter);
  }
}

TEST_CASE("letters are drawn where they were asked for, and cut at the border") {
  Tensor picture = Tensor::from_vector(std::vector<std::uint8_t>(3 * 20 * 40, 0), Shape{3, 20, 40});
  draw_text(picture, "a\xC3\xA9", 2, 3, 1, 255, 128, 0);
  const auto pixels = picture.to_vector<std::uint8_t>();
  CHECK(std::count(pixels.begin(), pixels.begin() + 800, 255) > 5);
  CHECK(std::count(pixels.begin() + 800, pixels.begin() + 1600, 128) > 5);
  CHECK(std::count(pixels.begin() + 1600, pixels.end(), 0) == 800);
  CHECK(std::count(pixels.begin(), pixels.begin() + 80, 0) == 80);  // nothing above row 2
  draw_text(picture, "a long text that leaves the picture on every side", -5, -5, 3, 1, 1, 1);
  CHECK(text_width("ab") > text_width("a"));
}
