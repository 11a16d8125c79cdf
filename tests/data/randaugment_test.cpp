// Random crops, RandAugment and erasing: what is drawn, how often, and that the same seed gives the same picture.
#include "data/randaugment.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>

#include "data/augment.h"
#include "data/color.h"
#include "engine/error.h"
#include "tests/support/isolation.h"

using namespace polygrad;
using namespace polygrad::testing;
using doctest::Contains;

namespace {

Tensor ramp(std::int64_t channels, std::int64_t height, std::int64_t width) {
  std::vector<std::uint8_t> pixels;
  for (std::int64_t i = 0; i < channels * height * width; ++i)
    pixels.push_back(static_cast<std::uint8_t>(i * 37 % 251));
  return Tensor::from_vector(pixels, Shape{channels, height, width});
}

AugmentOptions everything() {
  return {.flip = true,
          .mean = {0.485, 0.456, 0.406},
          .stddev = {0.229, 0.224, 0.225},
          .height = 24,
          .width = 20,
          .resized_crop = true,
          .randaugment = true,
          .random_erasing = 0.25};
}

}  // namespace

TEST_CASE("the whole augmentation depends on its generator alone, and gives the asked size from any other") {
  const ImageTransform transform(everything());
  for (const auto& [height, width] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{40, 30}, {1, 1}, {7, 200}, {24, 20}}) {
    const Tensor image = ramp(3, height, width);
    std::set<std::vector<float>> seen;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      Generator a(seed), b(seed);
      const Tensor result = transform(image, a);
      REQUIRE(result.shape() == Shape{3, 24, 20});
      CHECK(all_finite(result));
      CHECK(result.to_vector<float>() == transform(image, b).to_vector<float>());
      seen.insert(result.to_vector<float>());
    }
    if (height > 1) CHECK(seen.size() > 20);  // inverted, posterised to black, ... some are alike
  }
  // Grey pictures too.
  AugmentOptions grey = everything();
  grey.mean = {0.4};
  grey.stddev = {0.2};
  Generator generator(3);
  CHECK(ImageTransform(grey)(ramp(1, 28, 28), generator).shape() == Shape{1, 24, 20});
}

TEST_CASE("a random crop has the drawn share of the area, an aspect from 3/4 to 4/3, and lies anywhere") {
  Generator generator(5);
  double smallest = 1, largest = 0, shares = 0;
  std::set<std::int64_t> tops, lefts;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const Box box = draw_resized_crop(100, 120, {0.08, 1}, generator);
    REQUIRE((box.top >= 0 && box.left >= 0 && box.top + box.height <= 100 && box.left + box.width <= 120));
    const double share = static_cast<double>(box.height * box.width) / 12000;
    const double aspect = static_cast<double>(box.width) / static_cast<double>(box.height);
    CHECK((aspect > 0.70 && aspect < 1.40));  // rounding of small sides
    smallest = std::min(smallest, share);
    largest = std::max(largest, share);
    shares += share;
    tops.insert(box.top);
    lefts.insert(box.left);
  }
  CHECK(smallest == doctest::Approx(0.08).epsilon(0.1));
  CHECK(largest > 0.95);
  CHECK(shares / kDraws == doctest::Approx(0.52).epsilon(0.05));  // large crops of a wrong aspect are drawn again
  CHECK(tops.size() > 60);
  CHECK(lefts.size() > 75);
  // An image that no such crop fits into: the middle, as near to the allowed aspects as it goes.
  const Box wide = draw_resized_crop(10, 1000, {1, 1}, generator);
  CHECK((wide.height == 10 && wide.width == 13 && wide.left == 493));
  const Box tall = draw_resized_crop(1000, 10, {1, 1}, generator);
  CHECK((tall.width == 10 && tall.height == 13 && tall.top == 493));
}

TEST_CASE("erasing: a rectangle of normal noise, from 2 % to a third, a quarter of the times it is asked for") {
  AugmentOptions options{.mean = {10}, .stddev = {1}};  // so that noise is told apart from the picture
  options.random_erasing = 0.25;
  const ImageTransform transform(options);
  const Tensor image = ramp(3, 40, 40);
  int erased = 0;
  double sum = 0, squares = 0, count = 0;
  for (std::uint64_t seed = 0; seed < 800; ++seed) {
    Generator generator(seed);
    const auto pixels = transform(image, generator).to_vector<float>();
    std::int64_t noise = 0, top = 40, bottom = -1, left = 40, right = -1;
    for (std::int64_t i = 0; i < 1600; ++i) {
      if (pixels[static_cast<std::size_t>(i)] < -6) continue;
      ++noise;
      top = std::min(top, i / 40);
      bottom = std::max(bottom, i / 40);
      left = std::min(left, i % 40);
      right = std::max(right, i % 40);
      sum += pixels[static_cast<std::size_t>(i)];
      squares += pixels[static_cast<std::size_t>(i)] * pixels[static_cast<std::size_t>(i)];
      ++count;
    }
    if (noise == 0) continue;
    ++erased;
    CHECK(noise == (bottom - top + 1) * (right - left + 1));  // a rectangle
    CHECK((noise >= 24 && noise <= 560));
  }
  CHECK(erased > 150);
  CHECK(erased < 250);
  CHECK(std::abs(sum / count) < 0.02);
  CHECK(squares / count == doctest::Approx(1).epsilon(0.03));
}

TEST_CASE("RandAugment: each op as often as any other, half of them applied") {
  // Counts what an op of this list does to an image that each of them changes.
  const Tensor image = ramp(3, 16, 16);
  RandAugmentOptions one;
  one.ops = 1;
  int unchanged = 0;
  std::set<std::vector<int>> results;
  constexpr int kDraws = 3000;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    Generator generator(seed);
    const Tensor result = rand_augment(image, one, generator);
    unchanged += result.to_vector<std::uint8_t>() == image.to_vector<std::uint8_t>();
    const auto pixels = result.to_vector<std::uint8_t>();
    results.emplace(pixels.begin(), pixels.end());
  }
  // Half are not applied; contrast and equalisation of this image may leave it as it is.
  CHECK(unchanged > kDraws * 0.47);
  CHECK(unchanged < kDraws * 0.60);
  CHECK(results.size() > 300);  // magnitudes differ from draw to draw
  RandAugmentOptions never;
  never.probability = 0;
  Generator generator(1);
  CHECK(rand_augment(image, never, generator).to_vector<std::uint8_t>() == image.to_vector<std::uint8_t>());
  RandAugmentOptions always = never;
  always.probability = 1;
  always.magnitude_stddev = 0;
  Generator other(1);
  CHECK(rand_augment(image, always, other).to_vector<std::uint8_t>() != image.to_vector<std::uint8_t>());
  CHECK_THROWS_AS(rand_augment(Tensor::from_vector<float>({1}, Shape{1, 1, 1}), never, generator), DTypeError);
}

TEST_CASE("every op takes every level of its table, on the smallest images too") {
  for (int op = 0; op < kAugmentOps; ++op) {
    CAPTURE(to_string(static_cast<AugmentOp>(op)));
    for (const double level : {0.0, 0.3, 5.0, 9.7, 10.0}) {
      for (const bool negated : {false, true}) {
        const double argument = augment_argument(static_cast<AugmentOp>(op), level, negated);
        for (const auto& [channels, height, width] : {std::array<std::int64_t, 3>{3, 1, 1}, {1, 2, 9}, {3, 5, 4}}) {
          for (const Filter filter : {Filter::nearest, Filter::bilinear, Filter::bicubic}) {
            const Tensor image = ramp(channels, height, width);
            CHECK(apply_augment(static_cast<AugmentOp>(op), image, argument, filter, {124}).shape() == image.shape());
          }
        }
      }
    }
  }
}

TEST_CASE("a smaller picture averages what falls together; to its size: resize, then the middle") {
  // One-pixel squares become an even grey, not a pattern.
  std::vector<std::uint8_t> squares;
  for (int y = 0; y < 512; ++y) {
    for (int x = 0; x < 512; ++x) squares.push_back((x + y) % 2 == 0 ? 255 : 0);
  }
  const Tensor board = Tensor::from_vector(squares, Shape{1, 512, 512});
  for (const Filter filter : {Filter::bilinear, Filter::bicubic, Filter::lanczos}) {
    for (const std::uint8_t value : resize(board, 64, 64, filter).to_vector<std::uint8_t>()) {
      CHECK(std::abs(static_cast<int>(value) - 127) <= 2);
    }
  }
  const ImageTransform transform({.height = 224, .width = 224, .resize = 256});
  Generator generator;
  CHECK(transform(ramp(3, 375, 500), generator).shape() == Shape{3, 224, 224});
  CHECK(transform(ramp(3, 10, 900), generator).shape() == Shape{3, 224, 224});
  const Tensor exact = ramp(3, 64, 64);
  const ImageTransform same({.height = 64, .width = 64, .resize = 64});
  CHECK(same(exact, generator).to_vector<float>() == normalize(exact, {}, {}).to_vector<float>());
  CHECK(center_crop(ramp(1, 3, 3), 5, 5).to_vector<std::uint8_t>()[6] == 0);
}

TEST_CASE("the middle of a resized picture is computed alone: the bytes of the whole's middle, in no more memory") {
  const std::vector<std::array<std::int64_t, 5>> shapes = {
      // height, width, shorter, of which height, width
      {37, 53, 20, 16, 16}, {53, 37, 20, 11, 20}, {9, 31, 24, 24, 24},  {31, 9, 24, 7, 50},
      {64, 64, 24, 24, 23}, {20, 50, 20, 13, 40}, {50, 20, 20, 60, 10}, {5, 6, 40, 64, 32}};
  for (const auto& [height, width, shorter, down, across] : shapes) {
    CAPTURE(height);
    CAPTURE(width);
    const Tensor image = ramp(3, height, width);
    const std::int64_t least = std::min(height, width);
    const Tensor whole = resize(image, shorter * height / least, shorter * width / least);
    CHECK(resize_center_crop(image, shorter, down, across).to_vector<std::uint8_t>() ==
          center_crop(whole, down, across).to_vector<std::uint8_t>());
  }
  const Tensor line = Tensor::from_vector(std::vector<std::uint8_t>(3 * 60000, 9), Shape{3, 1, 60000});
  const int code = run_in_child([&] {
    limit_further_memory(std::size_t{64} << 20);  // all of it would be 256 x 15,360,000
    return resize_center_crop(line, 256, 224, 224).shape() == Shape{3, 224, 224} ? 0 : 1;
  });
  CHECK(code == 0);
  CHECK_THROWS_AS(resize_center_crop(line, 0, 5, 5), ValueError);
}

TEST_CASE("settings without sense") {
  CHECK_THROWS_WITH_AS(ImageTransform({.resized_crop = true}), Contains("needs height and width"), ValueError);
  CHECK_THROWS_AS(ImageTransform({.height = 3}), ValueError);
  CHECK_THROWS_AS(ImageTransform({.random_erasing = 1.5}), ValueError);
  AugmentOptions options = everything();
  options.crop_scale = {0.5, 0.2};
  CHECK_THROWS_AS(ImageTransform{options}, ValueError);
  CHECK_THROWS_AS(posterize(ramp(1, 3, 3), 9), ValueError);
  CHECK_THROWS_WITH_AS(crop(ramp(1, 3, 3), {0, 1, 3, 3}), Contains("does not lie in 3 x 3"), ValueError);
  CHECK_THROWS_AS(resize(ramp(1, 3, 3), 0, 5), ValueError);
  CHECK_THROWS_AS(resize(ramp(1, 3, 3), 5, 5, Filter::nearest), ValueError);
  CHECK_THROWS_AS(rotate(ramp(3, 3, 3), 10, Filter::bicubic, {1, 2}), ValueError);
  CHECK_THROWS_AS(parse_filter("cubic"), ValueError);
}
