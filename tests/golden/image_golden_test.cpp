// Resizing, geometry and colour against Pillow's and timm's own results: byte for byte where the files' README says so.
#include <doctest/doctest.h>

#include "data/augment.h"
#include "data/color.h"
#include "data/decode.h"
#include "data/geometry.h"
#include "data/mix.h"
#include "data/randaugment.h"
#include "data/resize.h"
#include "tests/golden/golden_files.h"
#include "tests/support/skip.h"

using namespace polygrad;
using namespace polygrad::testing;

namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// The lines of a table behind its header, cut at tabs.
std::vector<std::vector<std::string>> table(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::vector<std::string>> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    if (!line.empty()) rows.push_back(split(line, '\t'));
  }
  return rows;
}

struct Parameters {
  std::map<std::string, std::string> values;

  explicit Parameters(const std::string& text) {
    for (const std::string& word : split(text, ' ')) {
      const std::size_t equal = word.find('=');
      values[word.substr(0, equal)] = word.substr(equal + 1);
    }
  }
  std::string text(const std::string& key) const { return values.at(key); }
  double number(const std::string& key) const { return std::stod(values.at(key)); }
  std::int64_t integer(const std::string& key) const { return std::stoll(values.at(key)); }
  std::vector<double> numbers(const std::string& key) const {
    std::vector<double> result;
    for (const std::string& word : split(values.at(key), ',')) result.push_back(std::stod(word));
    return result;
  }
  Filter filter() const { return parse_filter(values.at("filter")); }
  Fill fill() const {
    Fill fill;
    for (const double value : numbers("fill")) fill.push_back(static_cast<int>(value));
    return fill;
  }
};

Tensor run_op(const std::string& op, const Parameters& p, const Tensor& image) {
  if (op == "resize") return resize(image, p.integer("h"), p.integer("w"), p.filter());
  if (op == "crop_resize") {
    const Box box{p.integer("y0"), p.integer("x0"), p.integer("y1") - p.integer("y0"),
                  p.integer("x1") - p.integer("x0")};
    return crop_resize(image, box, p.integer("h"), p.integer("w"), p.filter());
  }
  if (op == "tv_resize_centercrop") {
    return resize_center_crop(image, p.integer("shorter"), p.integer("crop"), p.integer("crop"), p.filter());
  }
  if (op == "rotate") return rotate(image, p.number("degrees"), p.filter(), p.fill());
  if (op == "shear_x") return shear_x(image, p.number("factor"), p.filter(), p.fill());
  if (op == "shear_y") return shear_y(image, p.number("factor"), p.filter(), p.fill());
  if (op == "translate_x") return translate_x(image, p.number("pct"), p.filter(), p.fill());
  if (op == "translate_y") return translate_y(image, p.number("pct"), p.filter(), p.fill());
  if (op == "affine") {
    const std::vector<double> m = p.numbers("matrix");
    return affine(image, {m.at(0), m.at(1), m.at(2), m.at(3), m.at(4), m.at(5)}, p.filter(), p.fill());
  }
  if (op == "autocontrast") return auto_contrast(image);
  if (op == "equalize") return equalize(image);
  if (op == "invert") return invert(image);
  if (op == "posterize") return posterize(image, static_cast<int>(p.integer("bits")));
  if (op == "solarize") return solarize(image, static_cast<int>(p.integer("threshold")));
  if (op == "solarize_add") {
    return solarize_add(image, static_cast<int>(p.integer("add")), static_cast<int>(p.integer("threshold")));
  }
  if (op == "color") return adjust_color(image, p.number("factor"));
  if (op == "contrast") return adjust_contrast(image, p.number("factor"));
  if (op == "brightness") return adjust_brightness(image, p.number("factor"));
  if (op == "sharpness") return adjust_sharpness(image, p.number("factor"));
  if (op == "to_gray") return to_grey(image);
  if (op == "gray_to_rgb") return grey_to_rgb(to_grey(image));
  if (op == "hflip") return flip_horizontal(image);
  if (op == "center_crop") return center_crop(image, p.integer("size"), p.integer("size"));
  if (op == "pad") {
    return pad(image, p.integer("left"), p.integer("top"), p.integer("right"), p.integer("bottom"),
               static_cast<int>(p.integer("fill")));
  }
  throw std::runtime_error("no such op: " + op);
}

#define NEEDS_GOLDEN_IMAGES                                                                    \
  const std::string golden = golden_folder() + "/image";                                       \
  if (!std::filesystem::is_directory(golden)) {                                                \
    return skip("sample data missing: no folder image in POLYGRAD_GOLDEN (expected results)"); \
  }

}  // namespace

TEST_CASE("every image op gives Pillow's bytes") {
  NEEDS_GOLDEN_IMAGES
  std::map<std::string, int> seen;
  for (const auto& row : table(golden + "/manifest.tsv")) {
    const std::string &expected_file = row.at(0), &op = row.at(2);
    CAPTURE(expected_file);
    const Parameters parameters(row.at(3));
    const Tensor result = run_op(op, parameters, read_image(golden + "/" + row.at(1)));
    const Tensor expected = read_image(golden + "/" + expected_file, {.grey = row.at(5) == "L"});
    REQUIRE(result.shape() == expected.shape());
    const auto got = result.to_vector<std::uint8_t>(), want = expected.to_vector<std::uint8_t>();
    std::int64_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i) different += got[i] != want[i];
    CHECK(different == 0);  // also nearest, for which the README allows half a per cent
    ++seen[op];
  }
  CHECK(seen.size() >= 20);
}

TEST_CASE("normalisation is (x / 255 - mean) / std") {
  NEEDS_GOLDEN_IMAGES
  const TensorMap tensors = read_golden(golden, "normalize");
  const Tensor image = normalize(read_image(golden + "/in/mix.png"), {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  CHECK(largest_difference(values_of(image), values_of(tensors.at("mix"))) < 5e-7);
}

TEST_CASE("the level table of RandAugment is timm's, number for number") {
  NEEDS_GOLDEN_IMAGES
  const std::map<std::string, AugmentOp> ops = {{"auto_contrast", AugmentOp::auto_contrast},
                                                {"equalize", AugmentOp::equalize},
                                                {"invert", AugmentOp::invert},
                                                {"rotate", AugmentOp::rotate},
                                                {"posterize", AugmentOp::posterize},
                                                {"solarize", AugmentOp::solarize},
                                                {"solarize_add", AugmentOp::solarize_add},
                                                {"color", AugmentOp::color},
                                                {"contrast", AugmentOp::contrast},
                                                {"brightness", AugmentOp::brightness},
                                                {"sharpness", AugmentOp::sharpness},
                                                {"shear_x", AugmentOp::shear_x},
                                                {"shear_y", AugmentOp::shear_y},
                                                {"translate_x_rel", AugmentOp::translate_x},
                                                {"translate_y_rel", AugmentOp::translate_y}};
  REQUIRE(ops.size() == kAugmentOps);
  std::size_t rows = 0;
  for (const auto& row : table(golden + "/randaugment.tsv")) {
    CAPTURE(row.at(0));
    CAPTURE(row.at(2));
    const double level = std::stod(row.at(2));
    for (const bool negated : {false, true}) {
      const std::string& expected = row.at(negated ? 4 : 3);
      const double argument = augment_argument(ops.at(row.at(1)), level, negated);
      CHECK(argument == (expected == "-" ? 0.0 : std::stod(expected)));
    }
    ++rows;
  }
  CHECK(rows >= 4 * ops.size());
}

TEST_CASE("photographs are decoded as Pillow decodes them") {
  NEEDS_GOLDEN_IMAGES
  const char* data = std::getenv("POLYGRAD_TEST_DATA");
  const std::string folder = std::string(data == nullptr ? "" : data) + "/odd-images";
  if (!std::filesystem::is_directory(folder)) {
    return skip("sample data missing: no folder odd-images in POLYGRAD_TEST_DATA");
  }
  const bool turbo = jpeg_decoder_name() == std::string("libjpeg-turbo");
  for (const auto& row : table(golden + "/jpeg.tsv")) {
    CAPTURE(row.at(0));
    const Tensor image = read_image(folder + "/" + row.at(0));
    REQUIRE(image.size(2) == std::stoll(row.at(2)));
    REQUIRE(image.size(1) == std::stoll(row.at(3)));
    const auto pixels = image.to_vector<std::uint8_t>();
    const std::size_t plane = static_cast<std::size_t>(image.size(1) * image.size(2));
    for (std::size_t c = 0; c < 3; ++c) {
      double sum = 0;
      for (std::size_t i = 0; i < plane; ++i) sum += pixels[c * plane + i];
      CHECK(std::abs(sum / static_cast<double>(plane) - std::stod(row.at(5 + c))) <= (turbo ? 0.5 : 3));
    }
    for (const std::string& pixel : split(row.at(11), ' ')) {
      const auto place = split(pixel.substr(0, pixel.find(':')), ',');
      const auto colours = split(pixel.substr(pixel.find(':') + 1), ',');
      const std::size_t at =
          std::stoull(place.at(1)) * static_cast<std::size_t>(image.size(2)) + std::stoull(place.at(0));
      for (std::size_t c = 0; c < 3; ++c) {
        CHECK(std::abs(static_cast<int>(pixels[c * plane + at]) - std::stoi(colours.at(c))) <= (turbo ? 2 : 40));
      }
    }
  }
}

TEST_CASE("CutMix's box and its share are timm's") {
  NEEDS_GOLDEN_IMAGES
  for (const auto& row : table(golden + "/cutmix.tsv")) {
    const std::int64_t height = std::stoll(row[0]), width = std::stoll(row[1]);
    const MixPlan plan = cutmix_plan(std::stod(row[2]), height, width, std::stoll(row[3]), std::stoll(row[4]));
    CHECK(plan.top == std::stoll(row[5]));
    CHECK(plan.bottom == std::stoll(row[6]));
    CHECK(plan.left == std::stoll(row[7]));
    CHECK(plan.right == std::stoll(row[8]));
    CHECK(plan.lambda == doctest::Approx(std::stod(row[9])).epsilon(1e-12));
  }
}
