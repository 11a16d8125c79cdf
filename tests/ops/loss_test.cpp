// Losses at their edges: huge logits, ignored targets, class ids outside, accumulation, threads, and the composed twin.
// Values and gradients of every op are checked by its rows in tests/op_cases.
#include "ops/loss.h"

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
#include "ops/index.h"
#include "ops/reduce.h"
#include "ops/softmax.h"
#include "ops/view.h"

using namespace polygrad;

namespace {

Tensor ids_of(const std::vector<std::int64_t>& ids) { return Tensor::from_vector<std::int64_t>(ids); }

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<double> values(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }

double largest_difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = values(a), y = values(b);
  REQUIRE(x.size() == y.size());
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::fabs(x[i] - y[i]));
  return largest;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

std::vector<std::int64_t> random_ids(std::int64_t count, std::int64_t classes, std::uint64_t seed) {
  Generator generator(seed);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(generator.integer(0, classes));
  return ids;
}

}  // namespace

TEST_CASE("cross_entropy of logits 1000, 0, -1000") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [label, expected] : std::vector<std::pair<std::int64_t, double>>{{0, 0}, {1, 1000}, {2, 2000}}) {
      const Tensor x = Tensor::from_vector<double>({1000, 0, -1000}, {1, 3}).to(dtype).set_requires_grad(true);
      const Tensor loss = cross_entropy(x, ids_of({label}));
      CHECK(loss.item<double>() == expected);
      loss.backward();
      std::vector<double> gradient{1, 0, 0};
      gradient[static_cast<std::size_t>(label)] -= 1;
      CHECK(values(x.grad()) == gradient);
    }
  }
}

TEST_CASE("a small loss survives large logits") {
  const Tensor x = Tensor::from_vector<float>({1000, 990}, {1, 2}, true);
  const Tensor loss = cross_entropy(x, ids_of({0}));
  CHECK(loss.item<double>() == doctest::Approx(std::log1p(std::exp(-10.0))).epsilon(1e-6));
  loss.backward();
  const double p = 1 / (1 + std::exp(10.0));
  CHECK(values(x.grad())[0] == doctest::Approx(-p).epsilon(1e-6));
  CHECK(values(x.grad())[1] == doctest::Approx(p).epsilon(1e-5));
}

TEST_CASE("gradients near certainty keep their digits, and each row's sum is 0") {
  const std::vector<std::vector<double>> rows = {{20, 0, -20}, {0, 30, 10}, {20, -10, 3}, {0.1, 0.2, 0.3}};
  for (const std::vector<double>& row : rows) {
    for (const double smoothing : {0.0, 0.1}) {
      for (std::int64_t label = 0; label < 3; ++label) {
        for (const bool soft : {false, true}) {
          CAPTURE(row[0]);
          CAPTURE(label);
          CAPTURE(soft);
          const auto gradient = [&](DType dtype) {
            Tensor logits = Tensor::from_vector<double>(row, {1, 3}).to(DType::f32).to(dtype).set_requires_grad(true);
            const CrossEntropyOptions options{.label_smoothing = smoothing};
            const Tensor ids = ids_of({label});
            (soft ? cross_entropy_soft(logits, one_hot(ids, 3, dtype), options) : cross_entropy(logits, ids, options))
                .backward();
            return values(logits.grad());
          };
          const std::vector<double> expected = gradient(DType::f64), got = gradient(DType::f32);
          double sum = 0, largest = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            sum += got[i];
            largest = std::max(largest, std::fabs(got[i]));
            // Beside a share of the smoothing a probability has that share's digits, not its own.
            if (smoothing == 0) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5).scale(0));
          }
          CHECK(std::fabs(sum) <= 1e-6 * largest);
        }
      }
    }
  }
}

TEST_CASE("all targets ignored: the loss is 0 and so is the gradient") {
  for (Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    for (double smoothing : {0.0, 0.1}) {
      const Tensor x = randn({3, 4}, {.requires_grad = true});
      const Tensor loss =
          sum(cross_entropy(x, ids_of({-100, -100, -100}), {.label_smoothing = smoothing, .reduction = reduction}));
      CHECK(loss.item<double>() == 0);
      loss.backward();
      CHECK(values(x.grad()) == std::vector<double>(12, 0));
    }
  }
  // Counted targets whose classes all weigh nothing are nothing, too.
  const Tensor x = randn({2, 2}, {.requires_grad = true});
  const Tensor loss = cross_entropy(x, ids_of({1, 1}), {.class_weight = Tensor::from_vector<float>({1, 0})});
  CHECK(loss.item<double>() == 0);
  loss.backward();
  CHECK(values(x.grad()) == std::vector<double>(4, 0));
}

TEST_CASE("an ignored row does not matter, whatever its logits are") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from_vector<float>({1, 2, nan, nan, 0, 1}, {3, 2}, true);
  const Tensor loss = cross_entropy(x, ids_of({0, -100, 1}));
  const Tensor rest = cross_entropy(Tensor::from_vector<float>({1, 2, 0, 1}, {2, 2}), ids_of({0, 1}));
  CHECK(loss.item<double>() == rest.item<double>());
  loss.backward();
  CHECK(values(x.grad())[2] == 0);
  CHECK(values(x.grad())[3] == 0);
}

TEST_CASE("class ids outside the classes are named before anything is read") {
  const Tensor x = zeros({4, 3});
  CHECK(error_of([&] {
          cross_entropy(x, ids_of({0, 1, -4, 3}));
        }) == "[cross_entropy] target[2] = -4; expected 0 <= value < 3, or -100 to ignore it");
  CHECK(error_of([&] {
          cross_entropy(x, ids_of({0, 3, 1, 2}), {.ignore_index = 255});
        }) == "[cross_entropy] target[1] = 3; expected 0 <= value < 3, or 255 to ignore it");
  CHECK(error_of([&] {
          cross_entropy(zeros({1, 3, 2, 2}), reshape(ids_of({0, 1, 2, 7}), {1, 2, 2}));
        }) == "[cross_entropy] target[0, 1, 1] = 7; expected 0 <= value < 3, or -100 to ignore it");
  CHECK_NOTHROW(cross_entropy(x, ids_of({0, 255, 1, 2}), {.ignore_index = 255}));
}

TEST_CASE("label smoothing 0.1 at 200 classes: 0.9005 for the target, 5e-4 for the others") {
  const Tensor x = zeros({1, 200}, {.dtype = DType::f64, .requires_grad = true});
  cross_entropy(x, ids_of({17}), {.label_smoothing = 0.1}).backward();
  const std::vector<double> gradient = values(x.grad());  // 1/200 minus the smoothed target
  for (std::size_t k = 0; k < 200; ++k) {
    CHECK(0.005 - gradient[k] == doctest::Approx(k == 17 ? 0.9005 : 5e-4).epsilon(1e-12));
  }
}

TEST_CASE("class ids and their one-hot distributions cost the same") {
  const Tensor x = randn({6, 5, 4}, {.dtype = DType::f64, .requires_grad = true});
  const Tensor ids = reshape(ids_of(random_ids(24, 5, 3)), {6, 4});
  const Tensor distribution = transpose(one_hot(ids, 5, DType::f64), 1, 2);
  for (double smoothing : {0.0, 0.2}) {
    const CrossEntropyOptions options{.label_smoothing = smoothing};
    Tensor(x).zero_grad();
    const Tensor a = cross_entropy(x, ids, options);
    a.backward();
    const Tensor gradient = x.grad().clone();
    Tensor(x).zero_grad();
    const Tensor b = cross_entropy_soft(x, distribution, options);
    b.backward();
    CHECK(a.item<double>() == doctest::Approx(b.item<double>()).epsilon(1e-13));
    CHECK(largest_difference(gradient, x.grad()) < 1e-15);
  }
}

TEST_CASE("soft targets: a class without probability costs nothing, even at a logit of -infinity") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::from_vector<double>({1, -infinity, 2}, {1, 3}, true);
  const Tensor loss = cross_entropy_soft(x, Tensor::from_vector<double>({0.25, 0, 0.75}, {1, 3}));
  const double lse = std::log(std::exp(1.0) + std::exp(2.0));
  CHECK(loss.item<double>() == doctest::Approx(0.25 * (lse - 1) + 0.75 * (lse - 2)).epsilon(1e-14));
  loss.backward();
  CHECK(values(x.grad())[1] == 0);
  CHECK(values(x.grad())[0] == doctest::Approx(std::exp(1 - lse) - 0.25).epsilon(1e-14));
}

TEST_CASE("cross_entropy is its composed twin: log_softmax, gather, mean") {
  for (DType dtype : {DType::f64, DType::f32}) {
    const double tolerance = dtype == DType::f64 ? 1e-14 : 1e-6;
    const Tensor x = randn({9, 21}, {.dtype = dtype, .requires_grad = true});
    const Tensor ids = ids_of(random_ids(9, 21, 5));
    const Tensor fused = cross_entropy(x, ids);
    fused.backward();
    const Tensor gradient = x.grad().clone();
    Tensor(x).zero_grad();
    const Tensor composed = mul(mean(gather(log_softmax(x, 1), 1, unsqueeze(ids, 1))), -1.0);
    composed.backward();
    CHECK(std::fabs(fused.item<double>() - composed.item<double>()) < tolerance);
    CHECK(largest_difference(gradient, x.grad()) < tolerance);
  }
}

TEST_CASE("accumulation 4 + 4 + 2 is 10 at once, however the ignored targets are spread") {
  std::vector<std::int64_t> ids = random_ids(10, 7, 11);
  ids[0] = ids[1] = ids[2] = ids[9] = -100;
  const Tensor x = randn({10, 7}, {.requires_grad = true}), target = ids_of(ids);
  cross_entropy(x, target, {.label_smoothing = 0.1}).backward();
  const Tensor at_once = x.grad().clone();
  Tensor(x).zero_grad();
  const std::int64_t counted = counted_targets(target);
  CHECK(counted == 6);
  for (const auto& [start, end] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 4}, {4, 8}, {8, 10}}) {
    const Tensor part = cross_entropy(slice(x, 0, start, end), slice(target, 0, start, end),
                                      {.label_smoothing = 0.1, .reduction = Reduction::sum});
    div(part, static_cast<double>(counted)).backward();
  }
  CHECK(largest_difference(at_once, x.grad()) <= 1e-6);
}

TEST_CASE("losses: the same bits for any number of threads") {
  const Tensor x = randn({700, 90}, {.requires_grad = true}), other = randn({700, 90});
  const Tensor ids = ids_of(random_ids(700, 90, 1)), soft = softmax(other, 1);
  std::vector<Tensor> first;
  for (int threads : {1, 2, 3, 16}) {
    const NumThreadsGuard guard(threads);
    std::vector<Tensor> results;
    for (int kind = 0; kind < 3; ++kind) {
      Tensor(x).zero_grad();
      const Tensor loss = kind == 0   ? cross_entropy(x, ids, {.label_smoothing = 0.1})
                          : kind == 1 ? cross_entropy_soft(x, soft)
                                      : mse_loss(x, other);
      loss.backward();
      results.push_back(loss.detach());
      results.push_back(x.grad().clone());
    }
    if (threads == 1) first = results;
    for (std::size_t i = 0; i < results.size(); ++i) CHECK(same_bits(results[i], first[i]));
  }
}

TEST_CASE("losses: errors") {
  const Tensor x = zeros({4, 3}), ids = ids_of({0, 1, 2, 0});
  CHECK(error_of([&] {
          cross_entropy(x, ids_of({0, 1}));
        }) ==
        "[cross_entropy] target (2) for logits (4, 3); expected class ids (4); for distributions use "
        "cross_entropy_soft");
  CHECK_THROWS_AS(cross_entropy(zeros({3}), ids_of({0})), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, x), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, ids.to(DType::i32)), DTypeError);
  CHECK_THROWS_AS(cross_entropy(x.to(DType::bf16), ids), DTypeError);
  CHECK_THROWS_AS(cross_entropy(x, ids, {.label_smoothing = 1.5}), ValueError);
  CHECK_THROWS_AS(cross_entropy(x, ids, {.label_smoothing = -0.1}), ValueError);
  CHECK_THROWS_AS(cross_entropy(x, ids, {.class_weight = ones({4})}), ShapeError);
  CHECK_THROWS_AS(cross_entropy(x, ids, {.class_weight = ones({3}, {.dtype = DType::f64})}), DTypeError);
  CHECK_THROWS_AS(cross_entropy_soft(x, zeros({3, 4})), ShapeError);
  CHECK_THROWS_AS(cross_entropy_soft(x, zeros({4, 3}, {.dtype = DType::f64})), DTypeError);
  CHECK_THROWS_AS(counted_targets(x), DTypeError);
  CHECK(error_of([&] {
          mse_loss(zeros({3, 1}), zeros({3}));
        }) == "[mse_loss] shapes differ: x (3, 1), y (3); nothing is broadcast here; use expand");
  CHECK_THROWS_AS(mse_loss(x, x.to(DType::f64)), DTypeError);
}

TEST_CASE("no gradient is cut silently: class weights and soft targets that need one") {
  const Tensor x = zeros({2, 3}, {.requires_grad = true});
  CHECK_THROWS_AS(cross_entropy(x, ids_of({0, 1}), {.class_weight = ones({3}, {.requires_grad = true})}), GradError);
  CHECK_THROWS_AS(cross_entropy_soft(x, ones({2, 3}, {.requires_grad = true})), GradError);
  CHECK_NOTHROW(cross_entropy_soft(x, ones({2, 3}, {.requires_grad = true}).detach()));
}

TEST_CASE("mse_loss sends opposite gradients, also where both inputs are one tensor") {
  const Tensor x = Tensor::from_vector<double>({1, 2}, {2}, true), y = Tensor::from_vector<double>({3, -1}, {2}, true);
  const Tensor loss = mse_loss(x, y);
  CHECK(loss.item<double>() == 6.5);
  loss.backward();
  CHECK(values(x.grad()) == std::vector<double>{-2, 3});
  CHECK(values(y.grad()) == std::vector<double>{2, -3});
  Tensor(x).zero_grad();
  mse_loss(x, x).backward();
  CHECK(values(x.grad()) == std::vector<double>{0, 0});
  CHECK(mse_loss(zeros({0, 2}), zeros({0, 2})).item<double>() == 0);
}
