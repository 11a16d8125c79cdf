// Dropout, drop path and the residual connection: statistics, what a sample draws, and what does not matter to it.
#include "ops/dropout.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/binary.h"
#include "ops/copy.h"
#include "ops/reduce.h"
#include "ops/view.h"

using namespace polygrad;

namespace {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

struct Statistics {
  double mean = 0, kept = 0;
};
// Of a tensor that was all ones; every element must be 0 or `kept_value`.
Statistics statistics(const Tensor& y, float kept_value) {
  Statistics result;
  const std::vector<float> values = y.to_vector<float>();
  for (float value : values) {
    if (value != 0) CHECK(value == kept_value);
    result.mean += value;
    result.kept += value != 0;
  }
  result.mean /= static_cast<double>(values.size());
  result.kept /= static_cast<double>(values.size());
  return result;
}

}  // namespace

TEST_CASE("drop path 0.2 over 100,000 samples of ones: kept ones are 1.25, the mean is 1") {
  Generator generator(1);
  const Statistics s = statistics(drop_path(ones({100000, 1}), 0.2, generator), 1.25f);
  CHECK(std::fabs(s.mean - 1) < 0.01);
  CHECK(std::fabs(s.kept - 0.8) < 0.008);
}

TEST_CASE("drop path keeps or drops whole samples") {
  Generator generator(5);
  const std::vector<float> y = drop_path(ones({200, 30}), 0.5, generator).to_vector<float>();
  int kept = 0;
  for (std::size_t row = 0; row < 200; ++row) {
    for (std::size_t j = 1; j < 30; ++j) REQUIRE(y[row * 30 + j] == y[row * 30]);
    kept += y[row * 30] != 0;
  }
  CHECK(kept > 60);
  CHECK(kept < 140);
}

TEST_CASE("dropout: statistics in every lane, between neighbours, samples and streams") {
  Generator generator(2);
  const Tensor first = dropout(ones({250, 400}), 0.25, generator);
  const Statistics s = statistics(first, static_cast<float>(1 / 0.75));
  CHECK(std::fabs(s.mean - 1) < 0.01);
  CHECK(std::fabs(s.kept - 0.75) < 0.007);
  // Four elements share one draw of Philox: each lane on its own.
  for (std::int64_t lane = 0; lane < 4; ++lane) {
    CHECK(std::fabs(statistics(slice(first, 1, lane, kEnd, 4), static_cast<float>(1 / 0.75)).kept - 0.75) < 0.014);
  }
  const auto both_kept = [](const Tensor& a, const Tensor& b) {
    return sum(mul(a, b)).item<double>() / static_cast<double>(a.numel()) * 0.75 * 0.75;
  };
  const double independent = 0.75 * 0.75;
  CHECK(std::fabs(both_kept(slice(first, 1, 1, 400), slice(first, 1, 0, 399)) - independent) < 0.01);
  CHECK(std::fabs(both_kept(slice(first, 0, 1, 250), slice(first, 0, 0, 249)) - independent) < 0.01);
  const Tensor second = dropout(ones({250, 400}), 0.25, generator);  // the next stream
  CHECK(std::fabs(both_kept(first, second) - independent) < 0.01);
  CHECK(generator.offset() == 2);
}

TEST_CASE("p = 0 is the identity, and takes a stream like any other") {
  Generator generator(1, 10);
  const Tensor x = randn({3, 4});
  CHECK(dropout(x, 0, generator).is_same(x));
  CHECK(drop_path(x, 0, generator).is_same(x));
  CHECK(same_bits(residual_add(x, x, 0, &generator), add(x, x)));
  CHECK(generator.offset() == 13);
}

TEST_CASE("the backward draws the forward's mask again") {
  const Tensor x = ones({40, 50}, {.requires_grad = true});
  const Tensor branch = ones({40, 50}, {.requires_grad = true});
  Generator generator(7);
  const Tensor y = dropout(x, 0.4, generator);
  sum(y).backward();
  CHECK(same_bits(x.grad(), y));
  const Tensor z = drop_path(x, 0.4, generator);
  Tensor(x).zero_grad();
  sum(z).backward();
  CHECK(same_bits(x.grad(), z));
  Generator same(7, 1);
  Tensor(x).zero_grad();
  sum(residual_add(x, branch, 0.4, &same)).backward();
  CHECK(same_bits(branch.grad(), z));
  CHECK(same_bits(x.grad(), ones({40, 50})));
}

TEST_CASE("what an element draws does not depend on how many follow it in its sample") {
  const auto mask = [](std::int64_t length) {
    Generator generator(3);
    return dropout(ones({2, length}), 0.3, generator);
  };
  const Tensor longest = mask(17000);
  for (const std::int64_t length : {1, 3, 4, 64, 65, 255, 256, 257, 300, 1000, 16385}) {
    CAPTURE(length);
    CHECK(same_bits(mask(length), slice(longest, 1, 0, length).contiguous()));
  }
}

TEST_CASE("micro-batches draw what the one batch draws") {
  const Tensor x = randn({10, 37});
  Generator whole(9, 4);
  Generator whole_path(9, 4);
  const Tensor y = dropout(x, 0.3, whole), z = drop_path(x, 0.5, whole_path);
  std::vector<Tensor> elements, samples;
  for (const auto& [start, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 8}, {8, 10}}) {
    Generator part(9, 4, start), part_path(9, 4, start);
    elements.push_back(dropout(slice(x, 0, start, end), 0.3, part));
    samples.push_back(drop_path(slice(x, 0, start, end), 0.5, part_path));
  }
  CHECK(same_bits(cat(elements, 0), y));
  CHECK(same_bits(cat(samples, 0), z));
}

TEST_CASE("the same bits for any number of threads") {
  const Tensor x = randn({5, 40000}), branch = randn({5, 40000});
  Tensor first, first_sum;
  for (int threads : {1, 2, 3, 16}) {
    const NumThreadsGuard guard(threads);
    Generator generator(11);
    const Tensor y = dropout(x, 0.1, generator), z = residual_add(x, branch, 0.5, &generator);
    if (threads == 1) {
      first = y;
      first_sum = z;
    }
    CHECK(same_bits(y, first));
    CHECK(same_bits(z, first_sum));
  }
}

TEST_CASE("residual_add is its composed twin, value and gradients") {
  for (double p : {0.0, 0.4}) {
    const Tensor x = randn({9, 6, 5}, {.requires_grad = true}), branch = randn({9, 6, 5}, {.requires_grad = true});
    const Tensor g = randn({9, 6, 5});
    Generator one(3, 8), other(3, 8);
    const Tensor fused = residual_add(x, branch, p, &one);
    fused.backward(g);
    const Tensor gx = x.grad().clone(), gb = branch.grad().clone();
    Tensor(x).zero_grad();
    Tensor(branch).zero_grad();
    const Tensor composed = add(x, drop_path(branch, p, other));
    composed.backward(g);
    CHECK(same_bits(fused, composed));
    CHECK(same_bits(gx, x.grad()));
    CHECK(same_bits(gb, branch.grad()));
  }
}

TEST_CASE("what is dropped is gone, even an infinity or a NaN") {
  const Tensor x = ones({64, 2});
  const Tensor bad = full({64, 2}, std::numeric_limits<double>::quiet_NaN());
  Generator generator(1), again(1);
  const std::vector<float> mask = drop_path(ones({64, 2}), 0.5, generator).to_vector<float>();
  const std::vector<float> y = residual_add(x, bad, 0.5, &again).to_vector<float>();
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(std::isnan(y[i]) == (mask[i] != 0));
}

TEST_CASE("dropout: errors") {
  Generator generator(1);
  const Tensor x = ones({2, 3});
  for (double p : {-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THROWS_AS(dropout(x, p, generator), ValueError);
    CHECK_THROWS_AS(drop_path(x, p, generator), ValueError);
    CHECK_THROWS_AS(residual_add(x, x, p, &generator), ValueError);
  }
  CHECK(error_of([&] { dropout(x, 1, generator); }) ==
        "[dropout] p = 1; expected a probability of dropping, 0 <= p < 1");
  CHECK(error_of([&] { residual_add(x, x, 0.5); }) ==
        "[residual_add] drop_path_p = 0.5 without a generator; expected one to draw from");
  CHECK(error_of([&] { residual_add(x, ones({3})); }) ==
        "[residual_add] shapes differ: x (2, 3), branch (3); nothing is broadcast here");
  CHECK_THROWS_AS(residual_add(x, x.to(DType::f64)), DTypeError);
  CHECK_THROWS_AS(dropout(x.to(DType::f16), 0.5, generator), DTypeError);
  CHECK(generator.offset() == 0);  // nothing was taken
}
