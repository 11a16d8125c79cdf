// Layer norm and softmax: extreme inputs, the composed twins, order, errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/binary.h"
#include "ops/copy.h"
#include "ops/cpu/norm_rows.h"
#include "ops/norm.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/unary.h"

using namespace polygrad;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to(DType::f64).to_vector<double>(), y = b.to(DType::f64).to_vector<double>();
  REQUIRE(x.size() == y.size());
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    largest = difference <= largest ? largest : difference;  // a NaN stays
  }
  return largest;
}

Tensor normal(const Shape& shape, std::uint64_t seed, double scale = 1, double shift = 0) {
  Generator generator(seed);
  return randn(shape, {.dtype = DType::f64, .generator = &generator}) * scale + shift;
}

Tensor composed_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Tensor centred = x - mean(x, {-1}, true);
  return centred / sqrt(mean(square(centred), {-1}, true) + eps) * weight + bias;
}

Tensor composed_softmax(const Tensor& x, int dim) {
  const Tensor e = exp(x - amax(x.detach(), dim, true));
  return e / sum(e, {dim}, true);
}

}  // namespace

TEST_CASE("layer_norm agrees with its composition, value and gradients") {
  const Tensor g = normal({3, 50, 40}, 9);
  std::vector<Tensor> results[2];
  for (int fused = 0; fused < 2; ++fused) {
    Tensor x = normal({3, 50, 40}, 1).set_requires_grad(true), weight = normal({40}, 2).set_requires_grad(true),
           bias = normal({40}, 3).set_requires_grad(true);
    const Tensor y = fused ? layer_norm(x, weight, bias, 1e-5) : composed_layer_norm(x, weight, bias, 1e-5);
    y.backward(g);
    results[fused] = {y.detach(), x.grad(), weight.grad(), bias.grad()};
  }
  for (std::size_t i = 0; i < 4; ++i) CHECK(largest_difference(results[0][i], results[1][i]) < 1e-12);
}

TEST_CASE("softmax and log_softmax agree with their compositions, value and gradients") {
  const Tensor g = normal({4, 30, 7}, 9);
  for (const int dim : {0, 1, 2}) {
    std::vector<Tensor> results[2];
    for (int fused = 0; fused < 2; ++fused) {
      Tensor x = normal({4, 30, 7}, 1, 3).set_requires_grad(true);
      const Tensor y = fused ? softmax(x, dim) : composed_softmax(x, dim);
      y.backward(g);
      Tensor z = x.detach().clone().set_requires_grad(true);
      const Tensor l = fused ? log_softmax(z, dim) : log(composed_softmax(z, dim));
      l.backward(g);
      results[fused] = {y.detach(), x.grad(), l.detach(), z.grad()};
    }
    for (std::size_t i = 0; i < 4; ++i) CHECK(largest_difference(results[0][i], results[1][i]) < 1e-12);
  }
}

TEST_CASE("layer_norm in f32: a mean ten thousand times the spread loses nothing but x's own rounding") {
  const Tensor x = normal({20, 192}, 4, 1, 1e4).to(DType::f32);
  CHECK(largest_difference(layer_norm(x), layer_norm(x.to(DType::f64))) < 2e-6);
  const Tensor tiny = normal({20, 192}, 4, 1e-3).to(DType::f32);
  CHECK(largest_difference(layer_norm(tiny), layer_norm(tiny.to(DType::f64))) < 2e-6);
}

TEST_CASE("layer_norm in f32: a row of a few distant numbers, and gradients near the largest float") {
  // The first element is far from all others: a mean guessed from a part of the row would be of no use.
  Tensor x = normal({7, 192}, 4).to(DType::f32);
  for (std::int64_t r = 0; r < 7; ++r) x.data<float>()[r * 192] = 3000;
  CHECK(largest_difference(layer_norm(x), layer_norm(x.to(DType::f64))) < 5e-6);
  Tensor y = normal({2, 100}, 5).to(DType::f32).set_requires_grad(true);
  Tensor g = normal({2, 100}, 6).to(DType::f32);
  const auto gradient = [&](double size) {
    y.zero_grad();
    layer_norm(y).backward(abs(g) * size);
    return y.grad().detach();
  };
  CHECK(largest_difference(gradient(0x1p126) * 0x1p-126, gradient(1)) < 1e-5);
}

TEST_CASE("layer_norm in f32: rows whose squares a float doesn't hold") {
  const Tensor x = Tensor::from_vector<float>({1, 2, 3, 4}, {1, 4});
  for (const double size : {1e20, 1e30, 1e-20, 1e-30}) {
    CAPTURE(size);
    const double eps = 1e-5 * size * size;
    Tensor large = (x * size).detach().set_requires_grad(true), plain = x.detach().clone().set_requires_grad(true);
    const Tensor y = layer_norm(large, {}, {}, eps), expected = layer_norm(plain, {}, {}, 1e-5);
    CHECK(largest_difference(y, expected) < 1e-6);
    const Tensor g = Tensor::from_vector<float>({1, -2, 0.5f, 3}, {1, 4});
    y.backward(g);
    expected.backward(g);
    CHECK(largest_difference(large.grad() * size, plain.grad()) < 1e-5);
  }
}

// What fused kernels call, in place and with a gradient that arrives by another way, is the op.
TEST_CASE_TEMPLATE("the loops over rows of layer_norm are the op", T, float, double) {
  const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::f64;
  for (const std::int64_t n : {1, 7, 16, 64, 100, 192, 600, 1500}) {
    CAPTURE(n);
    const std::int64_t rows = 13;
    Tensor x = normal({rows, n}, 1, 2, 3).to(dtype).set_requires_grad(true);
    Tensor weight = normal({n}, 2).to(dtype).set_requires_grad(true), bias = normal({n}, 3).to(dtype);
    bias.set_requires_grad(true);
    const Tensor g = normal({rows, n}, 4).to(dtype), other = normal({rows, n}, 5).to(dtype);
    const Tensor y = layer_norm(x, weight, bias);
    (sum(y * g) + sum(x * other)).backward();

    Tensor own = x.detach().clone();
    std::vector<double> mean(13), rstd(13), dweight(static_cast<std::size_t>(n)), dbias(static_cast<std::size_t>(n));
    cpu::layer_norm_rows(own.data<T>(), rows, n, weight.data<T>(), bias.data<T>(), 1e-5, own.data<T>(), mean.data(),
                         rstd.data());
    CHECK(own.to_vector<T>() == y.to_vector<T>());
    Tensor again = x.detach().clone();
    cpu::layer_norm_rows_again<T>(again.data<T>(), rows, n, weight.data<T>(), bias.data<T>(), mean.data(), rstd.data(),
                                  again.data<T>());
    CHECK(again.to_vector<T>() == y.to_vector<T>());
    Tensor dx = g.clone();
    cpu::layer_norm_rows_backward<T>(dx.data<T>(), x.data<T>(), rows, n, weight.data<T>(), mean.data(), rstd.data(),
                                     other.data<T>(), dx.data<T>(), dweight.data(), dbias.data());
    const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-13;
    CHECK(largest_difference(dx, x.grad()) < tolerance);
    CHECK(largest_difference(Tensor::from_vector(dweight, {n}).to(dtype), weight.grad()) < tolerance);
    CHECK(largest_difference(Tensor::from_vector(dbias, {n}).to(dtype), bias.grad()) < tolerance);
    Tensor alone = g.clone();
    cpu::layer_norm_rows_backward<T>(g.data<T>(), x.data<T>(), rows, n, nullptr, mean.data(), rstd.data(), nullptr,
                                     alone.data<T>(), nullptr, nullptr);
    x.zero_grad();
    layer_norm(x).backward(g);
    CHECK(alone.to_vector<T>() == x.grad().template to_vector<T>());
  }
}

TEST_CASE("layer_norm: a constant row gives the bias") {
  const Tensor y = layer_norm(full({2, 3}, 7), ones({3}), Tensor::from_vector<float>({1, 2, 3}));
  CHECK(y.to_vector<float>() == std::vector<float>{1, 2, 3, 1, 2, 3});
}

TEST_CASE("layer_norm and softmax have the same bits for any number of threads") {
  const Tensor start = randn({1500, 96});
  const auto run = [&](int threads) {
    const NumThreadsGuard guard(threads);
    Tensor x = start.detach().clone().set_requires_grad(true), weight = ones({96}, {.requires_grad = true}),
           bias = zeros({96}, {.requires_grad = true});
    const Tensor y = softmax(layer_norm(x, weight, bias), 0) + log_softmax(x, 1);
    y.backward(start);
    std::vector<float> all;
    for (const Tensor& t : {y.detach(), x.grad(), weight.grad(), bias.grad()}) {
      for (float v : t.to_vector<float>()) all.push_back(v);
    }
    return all;
  };
  const std::vector<float> one = run(1);
  for (const int threads : {2, 3, 16}) {
    const std::vector<float> more = run(threads);
    CHECK(std::memcmp(one.data(), more.data(), one.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("softmax: large logits, masked entries, rows of nothing but masks") {
  const Tensor x = Tensor::from_vector<float>({1e4f, 1e4f, -1e4f,  //
                                               0, -kInfinity, 0,   //
                                               -kInfinity, -kInfinity, -kInfinity},
                                              {3, 3});
  const std::vector<float> y = softmax(x, 1).to_vector<float>();
  CHECK(std::vector<float>(y.begin(), y.begin() + 6) == std::vector<float>{0.5f, 0.5f, 0, 0.5f, 0, 0.5f});
  for (int i = 6; i < 9; ++i) CHECK(std::isnan(y[static_cast<std::size_t>(i)]));  // as documented
  const std::vector<float> l = log_softmax(x, 1).to_vector<float>();
  CHECK(l[0] == doctest::Approx(-std::log(2.0)));
  CHECK(l[2] == doctest::Approx(-2e4 - std::log(2.0)));
  CHECK(l[4] == -kInfinity);

  Tensor logits = Tensor::from_vector<float>({1000, 0, -1000}, {1, 3}, true);
  log_softmax(logits, 1).backward(Tensor::from_vector<float>({0, -1, 0}, {1, 3}));
  CHECK(logits.grad().to_vector<float>() == std::vector<float>{1, -1, 0});
}

TEST_CASE("log_softmax: gradients near certainty keep their digits, and sum to 0") {
  for (const int dim : {0, 1}) {
    const auto gradient = [dim](DType dtype) {
      const Shape shape = dim == 0 ? Shape{3, 1} : Shape{1, 3};
      Tensor x = Tensor::from_vector<double>({20, 0, -5}, shape).to(dtype).set_requires_grad(true);
      const Tensor y = dim == 0 ? log_softmax(cat({x, x}, 1), 0) : log_softmax(x, 1);
      y.backward(
          cat(std::vector<Tensor>(dim == 0 ? 2 : 1, Tensor::from_vector<double>({-1, 0, 0}, shape).to(dtype)), 1));
      return x.grad().to(DType::f64).to_vector<double>();
    };
    const std::vector<double> expected = gradient(DType::f64), got = gradient(DType::f32);
    for (std::size_t i = 0; i < 3; ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5).scale(0));
    CHECK(std::abs(got[0] + got[1] + got[2]) < 1e-6 * std::abs(got[0]));
  }
}

TEST_CASE("layer_norm: a weight that no gradient reads is not watched") {
  const Tensor weight = ones({4}, {.requires_grad = true});
  const Tensor y = layer_norm(normal({3, 4}, 5).to(DType::f32), weight);
  weight.detach().fill_(7);
  CHECK_NOTHROW(y.backward(ones_like(y)));
  CHECK(weight.grad().defined());
  Tensor x = normal({3, 4}, 5).to(DType::f32).set_requires_grad(true);
  const Tensor z = layer_norm(x, weight);
  weight.detach().fill_(1);
  CHECK_THROWS_AS(z.backward(ones_like(z)), GradError);
}

TEST_CASE("layer_norm and softmax refuse wrong inputs with both shapes") {
  const Tensor x = zeros({2, 3});
  CHECK_THROWS_WITH_AS(layer_norm(x, ones({4})),
                       "[layer_norm] weight does not fit: x (2, 3), weight (4); expected (3), the last dimension of x",
                       ShapeError);
  CHECK_THROWS_AS(layer_norm(x, ones({3}), ones({1, 3})), ShapeError);
  CHECK_THROWS_WITH_AS(layer_norm(zeros({})), "[layer_norm] x has no dimensions: expected (..., D), got ()",
                       ShapeError);
  CHECK_THROWS_AS(layer_norm(x, ones({3}, {.dtype = DType::f64})), DTypeError);
  CHECK_THROWS_WITH_AS(layer_norm(x, {}, {}, -1e-5), "[layer_norm] eps must not be negative: got -1e-05", ValueError);
  CHECK_THROWS_AS(layer_norm(x.to(DType::bf16)), DTypeError);
  CHECK_THROWS_AS(softmax(x, 2), IndexError);
  CHECK_THROWS_AS(log_softmax(arange(3, {.dtype = DType::i64}), 0), DTypeError);
}
