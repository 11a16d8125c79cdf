// Mixup and CutMix: numbers by hand, odd batches, a batch of one, and independence of threads.
#include "data/mix.h"

#include <doctest/doctest.h>

#include <cmath>

#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"

using namespace polygrad;
using doctest::Contains;

namespace {

Tensor labels_of(const std::vector<std::int64_t>& labels) { return Tensor::from_vector<std::int64_t>(labels); }

// B images of one channel, 4 x 4, each filled with its number in the batch.
Tensor numbered(std::int64_t batch) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < batch * 16; ++i) values.push_back(static_cast<float>(i / 16));
  return Tensor::from_vector(values, Shape{batch, 1, 4, 4});
}

std::vector<float> first_pixels(const Tensor& images) {
  const auto values = images.to_vector<float>();
  std::vector<float> firsts;
  for (std::size_t i = 0; i < values.size(); i += 16) firsts.push_back(values[i]);
  return firsts;
}

}  // namespace

TEST_CASE("label smoothing alone: K = 200, epsilon 0.1 gives 5e-4 and 0.9005") {
  const auto row = mix_targets(labels_of({3}), {}, 200, 0.1).to_vector<float>();
  CHECK(row[0] == doctest::Approx(5e-4));
  CHECK(row[3] == doctest::Approx(0.9005));
}

TEST_CASE("mixup: partner i of sample B-1-i, images and targets with the same share") {
  MixPlan plan;
  plan.lambda = 0.75;
  Tensor images = numbered(4);
  mix_images(images, plan);
  CHECK(first_pixels(images) == std::vector<float>{0.75f, 1.25f, 1.75f, 2.25f});
  const auto targets = mix_targets(labels_of({0, 1, 2, 0}), plan, 3, 0).to_vector<float>();
  CHECK(targets == std::vector<float>{1, 0, 0, 0, 0.75f, 0.25f, 0, 0.25f, 0.75f, 1, 0, 0});
}

TEST_CASE("an odd batch: the middle sample is its own partner, to the bit; a batch of one stays as it is") {
  MixPlan plan;
  plan.lambda = 0.3;
  Tensor five = numbered(5);
  mix_images(five, plan);
  CHECK(first_pixels(five)[2] == 2.0f);
  CHECK(first_pixels(five)[0] == doctest::Approx(0.7 * 4));
  Tensor one = full({1, 1, 4, 4}, 0.1);
  mix_images(one, plan);
  CHECK(one.to_vector<float>() == std::vector<float>(16, 0.1f));
  CHECK(mix_targets(labels_of({1}), plan, 2, 0).to_vector<float>() == std::vector<float>{0, 1});
}

TEST_CASE("soft targets sum to 1 for any batch, kind and smoothing") {
  MixOptions options;
  options.mixup = 0.8;
  options.cutmix = 1;
  options.classes = 10;
  for (std::int64_t step = 0; step < 50; ++step) {
    Generator generator = mix_generator(7, step);
    const MixPlan plan = draw_mix(options, 4, 4, generator);
    const auto targets = mix_targets(labels_of({0, 1, 2, 3, 9}), plan, 10, 0.1).to_vector<float>();
    for (std::size_t row = 0; row < 5; ++row) {
      double sum = 0;
      for (std::size_t k = 0; k < 10; ++k) sum += static_cast<double>(targets[row * 10 + k]);
      CHECK(sum == doctest::Approx(1).epsilon(1e-6));
    }
  }
}

TEST_CASE("cutmix: the box is the partner's, the rest its own; lambda is the share that is left") {
  MixPlan plan;
  plan.cutmix = true;
  plan.top = 1;
  plan.bottom = 3;
  plan.left = 2;
  plan.right = 4;
  plan.lambda = 1 - 4.0 / 16;
  Tensor images = numbered(2);
  mix_images(images, plan);
  const auto values = images.to_vector<float>();
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 4; ++x) {
      const bool inside = y >= 1 && y < 3 && x >= 2;
      const auto at = static_cast<std::size_t>(y * 4 + x);
      CHECK(values[at] == (inside ? 1.0f : 0.0f));
      CHECK(values[16 + at] == (inside ? 0.0f : 1.0f));
    }
  }
}

TEST_CASE("drawn boxes lie in the image, and lambda is what they leave") {
  MixOptions options;
  options.cutmix = 1;
  int empty = 0;
  for (std::int64_t step = 0; step < 500; ++step) {
    Generator generator = mix_generator(1, step);
    const MixPlan plan = draw_mix(options, 28, 20, generator);
    REQUIRE(plan.cutmix);
    CHECK(plan.top >= 0);
    CHECK(plan.top <= plan.bottom);
    CHECK(plan.bottom <= 28);
    CHECK(plan.left >= 0);
    CHECK(plan.left <= plan.right);
    CHECK(plan.right <= 20);
    const auto area = static_cast<double>((plan.bottom - plan.top) * (plan.right - plan.left));
    CHECK(plan.lambda == doctest::Approx(1 - area / 560));
    empty += area == 0 ? 1 : 0;
  }
  CHECK(empty < 50);
}

TEST_CASE("the shares: Beta(0.8, 0.8) and Beta(1, 1), CutMix in half of the batches") {
  MixOptions options;
  options.mixup = 0.8;
  options.cutmix = 1;
  double sum = 0, squares = 0;
  int cutmix = 0, mixup = 0;
  for (std::int64_t step = 0; step < 4000; ++step) {
    Generator generator = mix_generator(3, step);
    const MixPlan plan = draw_mix(options, 8, 8, generator);
    CHECK(plan.lambda >= 0);
    CHECK(plan.lambda <= 1);
    if (plan.cutmix) {
      ++cutmix;
      continue;
    }
    ++mixup;
    sum += plan.lambda;
    squares += plan.lambda * plan.lambda;
  }
  CHECK(cutmix > 1850);
  CHECK(cutmix < 2150);
  const double mean = sum / mixup, variance = squares / mixup - mean * mean;
  CHECK(mean == doctest::Approx(0.5).epsilon(0.04));
  CHECK(variance == doctest::Approx(0.25 / 2.6).epsilon(0.06));  // 1 / (4 (2 alpha + 1))
}

TEST_CASE("the numbers come from seed, step and micro-batch") {
  MixOptions options;
  options.mixup = 1;
  const auto lambda = [&](std::uint64_t seed, std::int64_t step, std::int64_t micro_batch) {
    Generator generator = mix_generator(seed, step, micro_batch);
    return draw_mix(options, 4, 4, generator).lambda;
  };
  CHECK(lambda(1, 2, 3) == lambda(1, 2, 3));
  CHECK(lambda(1, 2, 3) != lambda(2, 2, 3));
  CHECK(lambda(1, 2, 3) != lambda(1, 3, 3));
  CHECK(lambda(1, 2, 3) != lambda(1, 2, 4));
  CHECK(lambda(1, 2, 3) != lambda(1, 3, 2));
}

TEST_CASE("the same bits with 1 and 3 threads") {
  MixPlan plan;
  plan.lambda = 0.123456789;
  Generator generator(5);
  TensorOptions options;
  options.generator = &generator;
  const Tensor images = randn({33, 3, 32, 32}, options);
  Tensor one = images.clone(), three = images.clone();
  {
    const NumThreadsGuard guard(1);
    mix_images(one, plan);
  }
  {
    const NumThreadsGuard guard(3);
    mix_images(three, plan);
  }
  CHECK(one.to_vector<float>() == three.to_vector<float>());
  CHECK(one.to_vector<float>() != images.to_vector<float>());
}

TEST_CASE("nothing on: nothing is drawn, nothing is mixed") {
  Generator generator(1), untouched(1);
  const MixPlan plan = draw_mix({}, 4, 4, generator);
  CHECK(plan.lambda == 1);
  CHECK(generator.next_u64() == untouched.next_u64());
  Tensor images = numbered(3);
  mix_images(images, plan);
  CHECK(first_pixels(images) == std::vector<float>{0, 1, 2});
}

TEST_CASE("errors") {
  MixOptions options;
  options.mixup = -1;
  Generator generator(1);
  CHECK_THROWS_AS(draw_mix(options, 4, 4, generator), ValueError);
  CHECK_THROWS_WITH_AS(mix_targets(labels_of({0, 10}), {}, 10, 0),
                       "[mix_targets] label 10 of sample 1 is outside the 10 classes", IndexError);
  CHECK_THROWS_AS(mix_targets(labels_of({0}), {}, 10, 1), ValueError);
  Tensor flat = zeros({4, 4});
  CHECK_THROWS_WITH_AS(mix_images(flat, {}), Contains("[mix_images] expected images (batch, channels, height, width)"),
                       ShapeError);
}
