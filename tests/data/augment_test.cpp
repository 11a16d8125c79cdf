// Flip, crop and normalisation against numbers by hand, and who draws the random ones.
#include "data/augment.h"

#include <doctest/doctest.h>

#include <map>

#include "engine/error.h"

using namespace polygrad;
using doctest::Contains;

namespace {

using Bytes = std::vector<std::uint8_t>;

Tensor image_3x3() { return Tensor::from_vector<std::uint8_t>({1, 2, 3, 4, 5, 6, 7, 8, 9}, Shape{1, 3, 3}); }

}  // namespace

TEST_CASE("a flip mirrors left to right, in each channel, for u8 and f32") {
  CHECK(flip_horizontal(image_3x3()).to_vector<std::uint8_t>() == Bytes{3, 2, 1, 6, 5, 4, 9, 8, 7});
  const Tensor two = Tensor::from_vector<float>({1, 2, 3, 4}, Shape{2, 1, 2});
  CHECK(flip_horizontal(two).to_vector<float>() == std::vector<float>{2, 1, 4, 3});
}

TEST_CASE("a crop is a window of the padded image, at any of its places") {
  const Tensor image = image_3x3();
  CHECK(shift_crop(image, 1, 1, 1).to_vector<std::uint8_t>() == image.to_vector<std::uint8_t>());
  CHECK(shift_crop(image, 1, 0, 0).to_vector<std::uint8_t>() == Bytes{0, 0, 0, 0, 1, 2, 0, 4, 5});
  CHECK(shift_crop(image, 1, 2, 0).to_vector<std::uint8_t>() == Bytes{0, 4, 5, 0, 7, 8, 0, 0, 0});
  CHECK(shift_crop(image, 1, 1, 2).to_vector<std::uint8_t>() == Bytes{2, 3, 0, 5, 6, 0, 8, 9, 0});
  // A padding wider than the image can leave nothing but zeros.
  CHECK(shift_crop(image, 5, 0, 0).to_vector<std::uint8_t>() == Bytes(9, 0));
  CHECK(shift_crop(image, 5, 10, 10).to_vector<std::uint8_t>() == Bytes(9, 0));
  CHECK_THROWS_WITH_AS(shift_crop(image, 1, 3, 0),
                       "[shift_crop] window at (3, 0) with padding 1; expected 0 <= top, left <= 2", ValueError);
}

TEST_CASE("normalisation: pixels of u8 are scaled to [0, 1] first, those of f32 are not") {
  const Tensor u8 = Tensor::from_vector<std::uint8_t>({0, 255, 51}, Shape{1, 1, 3});
  const auto scaled = normalize(u8, {}, {}).to_vector<float>();
  CHECK(scaled == std::vector<float>{0, 1, 0.2f});
  const auto normal = normalize(u8, {0.2}, {0.5}).to_vector<float>();
  CHECK(normal[0] == doctest::Approx(-0.4));
  CHECK(normal[1] == doctest::Approx(1.6));
  CHECK(normal[2] == doctest::Approx(0).epsilon(1e-6));
  const Tensor f32 = Tensor::from_vector<float>({1, 2}, Shape{2, 1, 1});
  CHECK(normalize(f32, {1, 1}, {2, 4}).to_vector<float>() == std::vector<float>{0, 0.25f});
  CHECK(normalize(f32, {1}, {2}).to_vector<float>() == std::vector<float>{0, 0.5f});  // one number for all channels
}

TEST_CASE("a transform draws from the sample's generator alone") {
  AugmentOptions options;
  options.flip = true;
  options.crop_padding = 2;
  const ImageTransform transform(options);
  const Tensor image = image_3x3();
  Generator a(42), b(42);
  CHECK(transform(image, a).to_vector<float>() == transform(image, b).to_vector<float>());

  int different = 0, flipped = 0;
  AugmentOptions only_flip;
  only_flip.flip = true;
  const ImageTransform flip(only_flip);
  const auto plain = normalize(image, {}, {}).to_vector<float>();
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Generator first(seed), second(seed);
    different += transform(image, first).to_vector<float>() != plain ? 1 : 0;
    flipped += flip(image, second).to_vector<float>() != plain ? 1 : 0;
  }
  CHECK(different > 380);  // 1/25 of the crops is the image itself, half of them not flipped
  CHECK(flipped > 160);
  CHECK(flipped < 240);
}

TEST_CASE("every window of the padded image is drawn, about equally often") {
  AugmentOptions options;
  options.crop_padding = 1;
  const ImageTransform transform(options);
  std::map<std::vector<float>, int> seen;
  for (std::uint64_t seed = 0; seed < 900; ++seed) {
    Generator generator(seed);
    ++seen[transform(image_3x3(), generator).to_vector<float>()];
  }
  CHECK(seen.size() == 9);
  for (const auto& [window, times] : seen) {
    CHECK(times > 60);
    CHECK(times < 150);
  }
}

TEST_CASE("without switches a transform is the evaluation's: no number is drawn") {
  AugmentOptions options;
  options.mean = {0.5};
  options.stddev = {0.25};
  Generator generator(1), untouched(1);
  const Tensor result = ImageTransform(options)(image_3x3(), generator);
  CHECK(result.to_vector<float>() == normalize(image_3x3(), {0.5}, {0.25}).to_vector<float>());
  CHECK(generator.next_u64() == untouched.next_u64());
}

TEST_CASE("errors name what came and what was expected") {
  CHECK_THROWS_WITH_AS(flip_horizontal(Tensor::from_vector<float>({1, 2})),
                       Contains("[flip_horizontal] expected an image (channels, height, width), got f32 (2)"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(normalize(Tensor::from_vector<double>({1}, Shape{1, 1, 1}), {}, {}),
                       Contains("[normalize] expected a u8 or f32 image, got f64 (1, 1, 1)"), DTypeError);
  CHECK_THROWS_WITH_AS(normalize(image_3x3(), {1, 2}, {}), "[normalize] 2 numbers for 1 channels", ValueError);
  CHECK_THROWS_WITH_AS(normalize(image_3x3(), {}, {0}), "[normalize] standard deviation 0; expected a positive one",
                       ValueError);
  AugmentOptions options;
  options.crop_padding = -1;
  CHECK_THROWS_AS(ImageTransform{options}, ValueError);
}
