// Reductions: accuracy, the rules for nothing and NaN, ties, order, errors.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/reduce.h"

using namespace polygrad;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("a sum of ten million floats is accurate") {
  const std::int64_t n = 10'000'000;
  const Tensor x = full({n}, 0.1f);
  const double exact = static_cast<double>(0.1f) * static_cast<double>(n);
  CHECK(std::abs(sum(x).item<float>() / exact - 1) < 1e-7);
  CHECK(mean(x).item<float>() == 0.1f);
  CHECK(std::abs(sum(full({n / 4, 4}, 0.1f), {0}).to_vector<float>()[3] / (exact / 4) - 1) < 1e-7);
  // Large terms that cancel: 1e8 and -1e8 around a million ones.
  Tensor cancelling = ones({1'000'002});
  cancelling.data<float>()[0] = 1e8f;
  cancelling.data<float>()[1'000'001] = -1e8f;
  CHECK(sum(cancelling).item<float>() == 1e6f);
}

TEST_CASE("large reductions, which are cut into slices, agree with plain loops") {
  Generator generator(3);
  const Shape shape{37, 700, 41};
  const Tensor x = randn(shape, {.dtype = DType::f64, .generator = &generator});
  const double* from = x.data<double>();
  for (const std::vector<int>& dims : {std::vector<int>{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}, {0, 1, 2}}) {
    bool reduced[3] = {};
    for (int d : dims) reduced[d] = true;
    const std::vector<double> got = sum(x, dims, true).to_vector<double>();
    std::vector<double> want(got.size(), 0.0);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const std::int64_t index[3] = {i / (700 * 41), i / 41 % 700, i % 41};
      std::int64_t position = 0;
      for (int d = 0; d < 3; ++d) position = reduced[d] ? position : position * shape[d] + index[d];
      want[static_cast<std::size_t>(position)] += from[i];
    }
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - want[i]));
    CHECK(worst < 1e-9);
  }
}

TEST_CASE("sums have the same bits for any number of threads") {
  const Tensor x = randn({300, 2000});
  const auto run = [&](int threads) {
    const NumThreadsGuard guard(threads);
    std::vector<float> all;
    for (const Tensor& y : {sum(x), sum(x, {0}), sum(x, {1}), mean(x, {0, 1}), sum_to_shape(x, {1, 2000})}) {
      for (float v : y.to_vector<float>()) all.push_back(v);
    }
    return all;
  };
  const std::vector<float> one = run(1);
  for (const int threads : {2, 3, 16}) {
    const std::vector<float> more = run(threads);
    CHECK(std::memcmp(one.data(), more.data(), one.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("reductions of nothing") {
  CHECK(sum(zeros({0})).item<float>() == 0);
  CHECK(sum(zeros({2, 0}), {1}).to_vector<float>() == std::vector<float>{0, 0});
  CHECK(mean(zeros({0, 3}), {1}).shape() == Shape{0});
  CHECK_THROWS_WITH_AS(mean(zeros({2, 0})), "[mean] the mean of nothing: f32 (2, 0) on cpu has no elements there",
                       ValueError);
  CHECK_THROWS_AS(mean(zeros({2, 0}), {1}), ValueError);
  CHECK_THROWS_WITH_AS(amax(zeros({2, 0}), 1),
                       "[amax] the largest of nothing: dimension 1 of f32 (2, 0) on cpu has size 0", ValueError);
  CHECK_THROWS_AS(argmax(zeros({0}), 0), ValueError);
  CHECK(argmax(zeros({0, 3}), 1).shape() == Shape{0});
}

TEST_CASE("the largest: NaN before all, the first of equals") {
  const Tensor x = Tensor::from_vector<float>({1, 5, 5, -2,       //
                                               kNan, 9, 3, kNan,  //
                                               -kInfinity, -kInfinity, -kInfinity, -kInfinity},
                                              {3, 4});
  const std::vector<float> largest = amax(x, 1).to_vector<float>();
  CHECK(largest[0] == 5);
  CHECK(std::isnan(largest[1]));
  CHECK(largest[2] == -kInfinity);
  CHECK(argmax(x, 1).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 0});
  CHECK(argmax(x, 0).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 1, 0, 1});
  const auto [values, indices] = topk(x, 3);
  CHECK(indices.to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2, 0, 0, 3, 1, 0, 1, 2});
  CHECK(values.to_vector<float>()[2] == 1);
  // A NaN beyond the first vector of a long row.
  Tensor row = zeros({1, 100});
  row.data<float>()[77] = kNan;
  CHECK(std::isnan(amax(row, 1).item<float>()));
}

TEST_CASE("equal largest elements share the gradient") {
  Tensor x = Tensor::from_vector<double>({3, 1, 3, 2}, {4}, true);
  amax(x, 0).backward();
  CHECK(x.grad().to_vector<double>() == std::vector<double>{0.5, 0, 0.5, 0});
}

TEST_CASE("wrong dimensions and gradients of reductions are refused") {
  const Tensor x = zeros({2, 3});
  CHECK_THROWS_AS(sum(x, {2}), IndexError);
  CHECK_THROWS_AS(amax(x, -3), IndexError);
  CHECK_THROWS_AS(argmax(zeros({}), 0), IndexError);
  CHECK_THROWS_WITH_AS(sum(x, {1, -1}), "[sum] dimension -1 given twice for f32 (2, 3) on cpu", ValueError);
  CHECK_THROWS_AS(sum(x, std::vector<int>{}), ValueError);
  CHECK_THROWS_AS(sum(arange(3, {.dtype = DType::i64})), DTypeError);
  CHECK_THROWS_WITH_AS(
      sum_to_shape(x, {2}),
      "[sum_to_shape] (2, 3) does not come from (2) by broadcasting; expected sizes that are equal or 1 "
      "where summed, aligned at the right",
      ShapeError);
  CHECK_THROWS_AS(sum_to_shape(x, {1, 2, 3}), ShapeError);
  CHECK_THROWS_WITH_AS(topk(x, 4), "[topk] k out of range: k = 4 of the last dimension of f32 (2, 3) on cpu",
                       ValueError);
  CHECK_THROWS_AS(topk(x, -1), ValueError);
  Tensor leaf = ones({3}, {.requires_grad = true});
  CHECK_THROWS_AS(topk(leaf, 1), GradError);
  const NoGradGuard no_grad;
  CHECK(topk(leaf, 1).second.item<std::int64_t>() == 0);
}
