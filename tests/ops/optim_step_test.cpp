// Optimizer steps: hand-computed first steps, composed and naive twins, norms at the ends of the range, the in-place
// rule. (These ops write in place and have no gradient, so the op-case table does not hold them.)
#include "ops/optim_step.h"

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
#include "ops/unary.h"
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

std::vector<double> values(const Tensor& x) { return x.to(DType::f64).to_vector<double>(); }
double value(const Tensor& x) { return values(x).at(0); }
Tensor number(double v, DType dtype = DType::f64) { return full({1}, v, {.dtype = dtype}); }

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

AdamWTensors adamw_tensors(const Shape& shape, DType dtype = DType::f32) {
  const TensorOptions options{.dtype = dtype};
  return {randn(shape, options), randn(shape, options), zeros(shape, options), zeros(shape, options)};
}

}  // namespace

TEST_CASE("AdamW is decoupled: the first step from 1 with gradient 0.5 ends at 0.99895") {
  for (DType dtype : {DType::f64, DType::f32}) {
    const double tolerance = dtype == DType::f64 ? 1e-10 : 1e-7;
    const Tensor p = number(1, dtype);
    adamw_step(p, number(0.5, dtype), number(0, dtype), number(0, dtype), {.lr = 1e-3, .weight_decay = 0.05});
    CHECK(std::fabs(value(p) - 0.99895) < tolerance);  // weight decay in the gradient would give 0.999
    const Tensor decayed = number(1, dtype);
    adamw_step(decayed, number(0, dtype), number(0, dtype), number(0, dtype), {.lr = 1e-3, .weight_decay = 0.05});
    CHECK(std::fabs(value(decayed) - 0.99995) < tolerance);
  }
}

TEST_CASE("AdamW adds eps outside the root") {
  const Tensor p = number(0);
  adamw_step(p, number(0.5), number(0), number(0), {.lr = 1, .eps = 0.5, .weight_decay = 0});
  CHECK(value(p) == doctest::Approx(-0.5).epsilon(1e-12));  // 0.5 / (0.5 + 0.5); under the root: 0.5 / sqrt(0.75)
}

TEST_CASE("AdamW is its composed twin over ten steps") {
  for (DType dtype : {DType::f64, DType::f32}) {
    Generator generator(1);
    const TensorOptions options{.dtype = dtype, .generator = &generator};
    AdamWTensors fused{randn({13, 9}, options), Tensor(), zeros({13, 9}, options), zeros({13, 9}, options)};
    Tensor p = fused.param.clone(), m = fused.exp_avg.clone(), v = fused.exp_avg_sq.clone();
    AdamWStep step{.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1};
    for (step.step = 1; step.step <= 10; ++step.step) {
      const Tensor g = randn({13, 9}, options);
      adamw_step(fused.param, g, fused.exp_avg, fused.exp_avg_sq, step);
      m = m * step.beta1 + g * (1 - step.beta1);
      v = v * step.beta2 + g * g * (1 - step.beta2);
      const double t = static_cast<double>(step.step);
      const Tensor mean = m / (1 - std::pow(step.beta1, t)), square = v / (1 - std::pow(step.beta2, t));
      p = p * (1 - step.lr * step.weight_decay) - mean / (sqrt(square) + step.eps) * step.lr;
    }
    const double tolerance = dtype == DType::f64 ? 1e-14 : 2e-6;
    CHECK(largest_difference(fused.param, p) < tolerance);
    CHECK(largest_difference(fused.exp_avg, m) < tolerance);
    CHECK(largest_difference(fused.exp_avg_sq, v) < tolerance);
  }
}

TEST_CASE("a list of parameters is updated as each alone, for any number of threads") {
  std::vector<AdamWTensors> list;
  for (const Shape& shape : {Shape{7}, Shape{0, 3}, Shape{}, Shape{300, 200}, Shape{1}, Shape{16384}, Shape{0}}) {
    list.push_back(adamw_tensors(shape));
  }
  list[3].grad = transpose(randn({200, 300}), 0, 1);  // any strides
  std::vector<std::vector<float>> expected;
  for (const AdamWTensors& t : list) {
    const Tensor p = t.param.clone();
    adamw_step(p, t.grad, zeros_like(p), zeros_like(p), {});
    expected.push_back(p.to_vector<float>());
  }
  for (int threads : {1, 2, 3, 16}) {
    const NumThreadsGuard guard(threads);
    std::vector<AdamWTensors> copies;
    for (const AdamWTensors& t : list) {
      copies.push_back({t.param.clone(), t.grad, zeros_like(t.param), zeros_like(t.param)});
    }
    adamw_step(copies, {});
    for (std::size_t i = 0; i < copies.size(); ++i) CHECK(copies[i].param.to_vector<float>() == expected[i]);
  }
}

TEST_CASE("SGD: every variant against a naive loop over five steps") {
  struct Variant {
    double momentum, dampening, weight_decay;
    bool nesterov;
  };
  for (const Variant& variant : std::vector<Variant>{
           {0, 0, 0, false}, {0, 0, 0.1, false}, {0.9, 0, 0.01, false}, {0.8, 0.3, 0, false}, {0.9, 0, 0.01, true}}) {
    Generator generator(4);
    const TensorOptions options{.dtype = DType::f64, .generator = &generator};
    const Tensor p = randn({11}, options);
    // What an unused buffer holds must not matter.
    const Tensor buffer =
        variant.momentum == 0 ? Tensor() : full({11}, std::numeric_limits<double>::quiet_NaN(), options);
    std::vector<double> expected = values(p), velocity(11, 0);
    for (int step = 0; step < 5; ++step) {
      const Tensor g = randn({11}, options);
      sgd_step(p, g, buffer,
               {.lr = 0.05,
                .momentum = variant.momentum,
                .dampening = variant.dampening,
                .weight_decay = variant.weight_decay,
                .nesterov = variant.nesterov,
                .first = step == 0});
      const std::vector<double> gradient = values(g);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        double direction = gradient[i] + variant.weight_decay * expected[i];
        if (variant.momentum != 0) {
          velocity[i] = step == 0 ? direction : variant.momentum * velocity[i] + (1 - variant.dampening) * direction;
          direction = variant.nesterov ? direction + variant.momentum * velocity[i] : velocity[i];
        }
        expected[i] -= 0.05 * direction;
      }
    }
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(values(p)[i] == doctest::Approx(expected[i]).epsilon(1e-13));
    }
  }
}

TEST_CASE("100 gradients of 1e20, clipped to norm 1, are 0.1 each") {
  std::vector<Tensor> grads;
  for (int i = 0; i < 100; ++i) grads.push_back(number(1e20, DType::f32));
  CHECK(clip_grad_norm(grads, 1) == doctest::Approx(1e21).epsilon(1e-6));
  for (const Tensor& grad : grads) CHECK(value(grad) == doctest::Approx(0.1).epsilon(1e-6));
}

TEST_CASE("the norm at the ends of the range") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto norm = [](const std::vector<double>& x) { return global_norm({Tensor::from_vector<double>(x)}); };
  CHECK(norm({3e200, 4e200}) == doctest::Approx(5e200).epsilon(1e-14));
  CHECK(norm({3e-200, -4e-200}) == doctest::Approx(5e-200).epsilon(1e-14));
  CHECK(norm({1.2e308, -0.5e308}) == doctest::Approx(1.3e308).epsilon(1e-14));
  CHECK(norm({3e-320, 4e-320}) == doctest::Approx(5e-320).epsilon(1e-3));  // denormal: few digits
  CHECK(norm({0, 0}) == 0);
  CHECK(norm({1, infinity}) == infinity);
  CHECK(norm({-infinity, 1}) == infinity);
  CHECK(std::isnan(norm({nan, infinity})));
  CHECK(std::isnan(norm({1e300, nan})));
  CHECK(global_norm({}) == 0);
  CHECK(global_norm({Tensor(), Tensor::from_vector<double>({3}), Tensor(), Tensor::from_vector<float>({4})}) == 5);
  CHECK(global_norm({zeros({0, 3})}) == 0);
  CHECK(global_norm({expand(ones({1}), {9})}) == 3);
  CHECK(sum_squares({Tensor(), Tensor::from_vector<double>({3}), Tensor::from_vector<float>({4})}).item<double>() ==
        25);
  CHECK_THROWS_AS(sum_squares({Tensor()}), ValueError);
}

TEST_CASE("the norm: the same bits for any number of threads, as exact as an f64 sum") {
  const std::vector<Tensor> tensors = {randn({300, 301}), randn({17}), randn({50000})};
  double expected = 0;
  for (const Tensor& tensor : tensors) {
    for (double v : values(tensor)) expected += v * v;
  }
  std::vector<double> norms;
  for (int threads : {1, 2, 3, 16}) {
    const NumThreadsGuard guard(threads);
    norms.push_back(global_norm(tensors));
    CHECK(norms.back() == norms.front());
  }
  CHECK(norms.front() == doctest::Approx(std::sqrt(expected)).epsilon(1e-13));
}

TEST_CASE("clipping leaves what is short enough, and what is not finite") {
  const Tensor a = Tensor::from_vector<float>({3, 0}), b = Tensor::from_vector<float>({4});
  CHECK(clip_grad_norm({a, Tensor(), b}, 6) == 5);
  CHECK(values(a) == std::vector<double>{3, 0});
  CHECK(clip_grad_norm({a, Tensor(), b}, 2.5) == 5);
  CHECK(values(a)[0] == doctest::Approx(1.5).epsilon(1e-6));  // torch: 2.5 / (5 + 1e-6)
  CHECK(value(b) == doctest::Approx(2).epsilon(1e-6));
  const Tensor bad = Tensor::from_vector<float>({1, std::numeric_limits<float>::infinity()});
  CHECK(std::isinf(clip_grad_norm({bad}, 1)));
  CHECK(values(bad)[0] == 1);
  CHECK_THROWS_AS(clip_grad_norm({a}, 0), ValueError);
  CHECK_THROWS_AS(clip_grad_norm({a}, std::numeric_limits<double>::quiet_NaN()), ValueError);
  // What can't be written is refused whether or not this norm needs it.
  for (const double max_norm : {1e-3, 1e3}) {
    CHECK_THROWS_AS(clip_grad_norm({a, a}, max_norm), ValueError);
    CHECK_THROWS_AS(clip_grad_norm({expand(ones({1}), {4})}, max_norm), ValueError);
    CHECK_THROWS_AS(clip_grad_norm({arange(3, {.dtype = DType::i64})}, max_norm), DTypeError);
  }
}

TEST_CASE("a gradient's factor in a step is the gradient scaled before it, to the bit") {
  CHECK(clip_factor(5, 6) == 1);
  CHECK(clip_factor(5, 2.5) == 2.5 / (5 + 1e-6));
  CHECK(clip_factor(std::numeric_limits<double>::infinity(), 1) == 1);
  CHECK_THROWS_AS(clip_factor(5, 0), ValueError);
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::vector<Tensor> results[2];
    for (const bool fused : {false, true}) {
      Generator generator(4);
      const auto random = [&] { return randn({5, 7}, {.dtype = dtype, .generator = &generator}); };
      const Tensor p = random(), q = random(), buffer = random(), m = random(), v = abs(random());
      const Tensor g = random() * 1e30;
      const double factor = clip_factor(global_norm({g}), 1);
      if (!fused) scale_(g, factor);
      adamw_step(p, g, m, v, {.step = 3, .grad_scale = fused ? factor : 1});
      sgd_step(q, g, buffer, {.momentum = 0.9, .weight_decay = 0.1, .grad_scale = fused ? factor : 1});
      sgd_step(q, g, Tensor(), {.grad_scale = fused ? factor : 1});
      results[fused] = {p, m, v, q, buffer};
      if (fused) CHECK(largest_difference(g, zeros_like(g)) > 1e29);  // stays as it was
    }
    for (std::size_t i = 0; i < 5; ++i) CHECK(values(results[0][i]) == values(results[1][i]));
  }
  CHECK(error_of([] { adamw_step(number(1), number(1), number(0), number(0), {.grad_scale = -1}); }) ==
        "[adamw_step] grad_scale = -1; expected a number >= 0");
}

TEST_CASE("ema_update: the formula, equal values stay equal, counters are copied") {
  const Tensor ema = Tensor::from_vector<double>({1, -2}), value_now = Tensor::from_vector<double>({3, 2});
  ema_update(ema, value_now, 0.75);
  CHECK(values(ema) == std::vector<double>{1.5, -1});
  Tensor x = randn({1000}), average = x.clone();
  for (int i = 0; i < 100; ++i) ema_update(average, x, 0.9999);
  CHECK(same_bits(average, x));
  const Tensor counter = Tensor::from_vector<std::int64_t>({3}), later = Tensor::from_vector<std::int64_t>({8});
  ema_update(std::vector<Tensor>{counter, ema}, std::vector<Tensor>{later, value_now}, 0.5);
  CHECK(counter.item<std::int64_t>() == 8);
  CHECK(values(ema) == std::vector<double>{2.25, 0.5});
  // However far apart the two are, a decay of 0 gives the value and one of 1 keeps the average.
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double from : {1e8, -3e30, 1e-30, infinity}) {
      const Tensor far = number(from, dtype);
      ema_update(far, number(1, dtype), 1);
      CHECK(value(far) == value(number(from, dtype)));
      ema_update(far, number(1, dtype), 0);
      CHECK(value(far) == 1);
    }
    const Tensor near = number(1e8, dtype);
    ema_update(near, number(1, dtype), 1e-9);
    CHECK(value(near) == doctest::Approx(1.1).epsilon(1e-6));
    for (const double decay : {0.0, 0.1, 0.3, 0.499, 0.5, 0.7}) {
      const Tensor same = x.clone();
      ema_update(same, x, decay);
      CHECK(same_bits(same, x));
    }
  }
  CHECK_THROWS_AS(ema_update(ema, value_now, 1.5), ValueError);
  CHECK_THROWS_AS(ema_update(std::vector<Tensor>{ema}, std::vector<Tensor>{}, 0.5), ValueError);
}

TEST_CASE("scale_ forms the product in f64") {
  const Tensor x = Tensor::from_vector<float>({1e38f, -2});
  scale_(x, 1e-39);
  CHECK(values(x)[0] == doctest::Approx(0.1).epsilon(1e-6));
}

TEST_CASE("optimizer steps follow the in-place rule") {
  const Tensor p = ones({3}, {.requires_grad = true}), g = ones({3}), m = zeros({3}), v = zeros({3});
  CHECK_THROWS_AS(adamw_step(p, g, m, v, {}), GradError);
  CHECK_THROWS_AS(sgd_step(p, g, {}, {}), GradError);
  CHECK_THROWS_AS(scale_(p, 2), GradError);
  CHECK_THROWS_AS(ema_update(p, g, 0.5), GradError);
  CHECK(values(p) == std::vector<double>{1, 1, 1});
  const NoGradGuard guard;
  const std::uint64_t before = p.version();
  CHECK_NOTHROW(adamw_step(p, g, m, v, {}));
  CHECK(p.version() > before);
  CHECK(value(p) < 1);
}

TEST_CASE("a parameter written after it was saved for a backward is an error there") {
  const Tensor p = ones({3}, {.requires_grad = true});
  const Tensor y = mul(p, p);
  {
    const NoGradGuard guard;
    sgd_step(p, ones({3}), {}, {.lr = 0.1});
  }
  CHECK_THROWS_AS(y.backward(ones({3})), GradError);
}

TEST_CASE("optimizer steps: what is written shares no memory and has no gaps") {
  const Tensor x = zeros({8}), g = ones({4}), m = zeros({4}), v = zeros({4});
  CHECK(error_of([&] { adamw_step(g, g, m, v, {}); }) ==
        "[adamw_step] param and grad share memory, and one is written; expected separate tensors, each once");
  CHECK_THROWS_AS(adamw_step(slice(x, 0, 0, 4), g, slice(x, 0, 3, 7), v, {}), ValueError);
  CHECK_NOTHROW(adamw_step(slice(x, 0, 0, 4), g, slice(x, 0, 4, 8), v, {}));
  CHECK_THROWS_AS(sgd_step(slice(x, 0, 0, 8, 2), g, {}, {}), ValueError);
  CHECK_THROWS_AS(sgd_step(expand(zeros({1}), {4}), g, {}, {}), ValueError);
  CHECK_THROWS_AS(clip_grad_norm({g, g}, 0.1), ValueError);  // would be scaled twice
  CHECK(values(g) == std::vector<double>(4, 1));
  const std::vector<SgdTensors> twice = {{x, ones({8}), {}}, {x, ones({8}), {}}};
  CHECK_THROWS_AS(sgd_step(twice, {}), ValueError);
  const Tensor shared = ones({8});  // gradients are only read
  const std::vector<SgdTensors> fine = {{x, shared, {}}, {zeros({8}), shared, {}}};
  CHECK_NOTHROW(sgd_step(fine, {}));
}

TEST_CASE("optimizer steps: errors") {
  const Tensor p = ones({3}), g = ones({3}), m = zeros({3}), v = zeros({3});
  const std::string missing = " is an undefined tensor; it has no elements, shape or dtype";
  CHECK(error_of([&] { adamw_step({}, g, m, v, {}); }) == "[adamw_step] param" + missing);
  CHECK(error_of([&] { adamw_step(p, {}, m, v, {}); }) == "[adamw_step] grad" + missing);
  CHECK(error_of([&] { adamw_step(p, g, {}, v, {}); }) == "[adamw_step] exp_avg" + missing);
  CHECK(error_of([&] { sgd_step(p, {}, {}, {}); }) == "[sgd_step] grad" + missing);
  CHECK(error_of([&] { scale_({}, 2); }) == "[scale_] x" + missing);
  CHECK(error_of([&] { ema_update(p, Tensor(), 0.5); }) == "[ema_update] value" + missing);
  CHECK(error_of([&] { adamw_step(p, g, m, v, {.step = 0}); }) ==
        "[adamw_step] step = 0; expected 1 for the first update");
  CHECK_THROWS_AS(adamw_step(p, g, m, v, {.beta1 = 1}), ValueError);
  CHECK_THROWS_AS(adamw_step(p, g, m, v, {.beta2 = -0.1}), ValueError);
  CHECK_THROWS_AS(adamw_step(p, g, m, v, {.lr = -1}), ValueError);
  CHECK_THROWS_AS(adamw_step(p, g, m, v, {.lr = std::numeric_limits<double>::quiet_NaN()}), ValueError);
  CHECK(error_of([&] { adamw_step(p, ones({4}), m, v, {}); }) == "[adamw_step] shapes differ: param (3), grad (4)");
  CHECK_THROWS_AS(adamw_step(p, g.to(DType::f64), m, v, {}), DTypeError);
  CHECK_THROWS_AS(adamw_step(p.to(DType::f16), g, m, v, {}), DTypeError);
  CHECK(error_of([&] { sgd_step(p, g, {}, {.momentum = 0.9}); }) ==
        "[sgd_step] momentum 0.9 without a buffer; expected one of the parameter's shape (3)");
  CHECK_THROWS_AS(sgd_step(p, g, m, {.nesterov = true}), ValueError);
  CHECK_THROWS_AS(sgd_step(p, g, m, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), ValueError);
  CHECK_THROWS_AS(sgd_step(p, g, {}, {.lr = -1}), ValueError);
  CHECK_THROWS_AS(global_norm({Tensor::from_vector<std::int64_t>({1})}), DTypeError);
  CHECK(values(p) == std::vector<double>{1, 1, 1});
}
