// The elementwise maps of one and two tensors: what the op table can't say.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "ops/binary.h"
#include "ops/cpu/gelu_block.h"
#include "ops/reduce.h"
#include "ops/unary.h"

using namespace polygrad;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Map = Tensor (*)(const Tensor&);

double at(Map map, double x, DType dtype = DType::f64) {
  return map(full({}, x, {.dtype = dtype})).to(DType::f64).item<double>();
}

// The derivative at x by the op's rule.
double slope(Map map, double x, DType dtype = DType::f64) {
  Tensor t = full({}, x, {.dtype = dtype});
  t.set_requires_grad(true);
  map(t).backward();
  return t.grad().to(DType::f64).item<double>();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("gelu: the exact form and its approximation") {
  CHECK(std::abs(at(gelu, 1) - 0.8413447) < 5e-8);
  CHECK(std::abs(at(gelu_tanh, 1) - 0.8411920) < 5e-8);
  CHECK(std::abs(at(gelu, 1, DType::f32) - 0.8413447) < 2e-7);
  CHECK(std::abs(at(gelu_tanh, 1, DType::f32) - 0.8411920) < 2e-7);
  double largest = 0, where = 0;
  for (double x = -6; x <= 0; x += 1e-3) {
    const double difference = std::abs(at(gelu, x) - at(gelu_tanh, x));
    if (difference > largest) largest = difference, where = x;
  }
  CHECK(largest == doctest::Approx(4.73e-4).epsilon(0.002));
  CHECK(where == doctest::Approx(-2.70).epsilon(0.01));
}

// What fused kernels call, in place or not, is the op.
TEST_CASE_TEMPLATE("gelu over a block is the op, value and gradient", T, float, double) {
  const DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::f64;
  for (const std::int64_t n : {0, 1, 15, 64, 1000}) {
    CAPTURE(n);
    Generator generator(1);
    Tensor x = (randn({n}, {.dtype = DType::f64, .generator = &generator}) * 3.0).to(dtype).set_requires_grad(true);
    const Tensor g = randn({n}, {.dtype = dtype, .generator = &generator});
    const Tensor y = gelu(x);
    y.backward(g, true);
    const std::vector<T> value = y.to_vector<T>(), gradient = x.grad().to_vector<T>();
    x.zero_grad();
    y.backward(ones_like(y));
    const std::vector<T> slope = x.grad().to_vector<T>();

    Tensor h = empty_like(y), a = x.detach().clone(), b = g.clone();
    cpu::gelu_backward_block<T>(a.data<T>(), g.data<T>(), b.data<T>(), a.data<T>(), n);
    CHECK(a.to_vector<T>() == value);
    CHECK(b.to_vector<T>() == gradient);
    cpu::gelu_backward_block<T>(x.data<T>(), g.data<T>(), b.data<T>(), nullptr, n);
    CHECK(b.to_vector<T>() == gradient);
    a = x.detach().clone();
    cpu::gelu_pair_block<T>(a.data<T>(), a.data<T>(), b.data<T>(), n);
    CHECK(a.to_vector<T>() == value);
    CHECK(b.to_vector<T>() == slope);
    a = x.detach().clone();
    cpu::gelu_block<T>(a.data<T>(), a.data<T>(), n);
    CHECK(a.to_vector<T>() == value);
  }
}

TEST_CASE("maps at the ends of the number line") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const double huge = dtype == DType::f32 ? 3e38 : 1e308;
    for (const Map map : {gelu, gelu_tanh, silu}) {
      CHECK(at(map, -kInfinity, dtype) == 0);
      CHECK(at(map, -huge, dtype) == 0);
      CHECK(at(map, kInfinity, dtype) == kInfinity);
      CHECK(at(map, 1000, dtype) == 1000);
      for (const double x : {kInfinity, huge, 1000.0}) {
        CHECK(slope(map, x, dtype) == 1);
        CHECK(slope(map, -x, dtype) == 0);
      }
    }
    CHECK(at(softplus, 1000, dtype) == 1000);
    CHECK(at(softplus, -30, dtype) == doctest::Approx(std::exp(-30)).epsilon(1e-6));
    CHECK(at(softplus, -kInfinity, dtype) == 0);
    CHECK(at(sigmoid, -kInfinity, dtype) == 0);
    CHECK(at(elu, -kInfinity, dtype) == -1);
    CHECK(slope(elu, -kInfinity, dtype) == 0);
    CHECK(at(exp, 800, dtype) == kInfinity);
    CHECK(at(exp_neg, 800, dtype) == 0);
    CHECK(at(log, 0, dtype) == -kInfinity);
    CHECK(std::isnan(at(log, -1, dtype)));
    CHECK(std::isnan(at(sqrt, -1, dtype)));
    CHECK(slope(sqrt, 0, dtype) == kInfinity);
    CHECK(slope(abs, 0, dtype) == 0);
    CHECK(slope(relu, 0, dtype) == 0);
  }
}

TEST_CASE("NaN goes through every map") {
  for (const Map map :
       {Map(neg), Map(abs), Map(exp), Map(log), Map(sqrt), Map(reciprocal), Map(square), Map(tanh), Map(sigmoid),
        Map(relu), Map(elu), Map(gelu), Map(gelu_tanh), Map(silu), Map(softplus), Map(exp_neg)}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      CHECK(std::isnan(at(map, kNan, dtype)));
      if (map != Map(neg)) CHECK(std::isnan(slope(map, kNan, dtype)));  // no 0 that hides where it came from
    }
  }
  const Tensor nan = full({3}, kNan), one = ones({3});
  for (const Tensor& y : {maximum(nan, one), maximum(one, nan), minimum(nan, one), minimum(one, nan)}) {
    for (float v : y.to_vector<float>()) CHECK(std::isnan(v));
  }
  CHECK(eq(nan, nan).to_vector<bool>() == std::vector<bool>(3, false));
  CHECK(ne(nan, nan).to_vector<bool>() == std::vector<bool>(3, true));
}

TEST_CASE("NaN stays visible in the gradients of maximum, minimum and amax") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto map : {static_cast<Tensor (*)(const Tensor&, const Tensor&)>(maximum),
                           static_cast<Tensor (*)(const Tensor&, const Tensor&)>(minimum)}) {
      Tensor a = Tensor::from_vector<double>({kNan, 1, kNan, 1, -kInfinity, 2}).to(dtype).set_requires_grad(true);
      Tensor b = Tensor::from_vector<double>({1, kNan, kNan, 1, kInfinity, 2}).to(dtype).set_requires_grad(true);
      sum(map(a, b)).backward();
      for (const Tensor& x : {a, b}) {
        const std::vector<double> gradient = x.grad().to(DType::f64).to_vector<double>();
        for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(gradient[i]) == (i < 3));
        CHECK(gradient[3] == 0.5);
      }
      CHECK(a.grad().to(DType::f64).to_vector<double>()[4] + b.grad().to(DType::f64).to_vector<double>()[4] == 1);
    }
    Tensor x = Tensor::from_vector<double>({1, kNan, 3, 4, 4, 1}, {2, 3}).to(dtype).set_requires_grad(true);
    sum(amax(x, 1)).backward();
    const std::vector<double> gradient = x.grad().to(DType::f64).to_vector<double>();
    CHECK(std::isnan(gradient[1]));
    CHECK(gradient[0] == 0);
    CHECK(gradient[2] == 0);
    CHECK(std::vector<double>(gradient.begin() + 3, gradient.end()) == std::vector<double>{0.5, 0.5, 0});
  }
}

TEST_CASE("a gradient that a float holds is not lost on the way to it") {
  const auto check = [](const std::function<Tensor(const Tensor&)>& map, float x, float g) {
    CAPTURE(x);
    CAPTURE(g);
    const auto gradient = [&](DType dtype) {
      Tensor t = full({}, x, {.dtype = dtype, .requires_grad = true});
      map(t).backward(full({}, g, {.dtype = dtype}));
      return t.grad().to(DType::f64).item<double>();
    };
    const double want = gradient(DType::f64);
    REQUIRE(std::abs(want) < 1e38);
    CHECK(gradient(DType::f32) == doctest::Approx(want).epsilon(1e-5));
  };
  check([](const Tensor& x) { return log(x); }, 1e-40f, 1e-30f);
  check([](const Tensor& x) { return reciprocal(x); }, 1e-20f, 1e-10f);
  check([](const Tensor& x) { return reciprocal(x); }, 1e30f, 1e30f);
  check([](const Tensor& x) { return pow(x, -1); }, 1e-20f, 1e-10f);
  // x / b and a / x: a, b, g of all sizes, denormals among them.
  const std::vector<float> sizes = {1e-42f, 1e-40f, 1e-30f, 1e-15f, 1, 1e15f, 1e30f};
  for (float x : sizes) {
    for (float other : sizes) {
      for (float g : sizes) {
        const double by = static_cast<double>(g) / other;
        if (by < 1e38 && by > 1e-37) check([=](const Tensor& t) { return t / static_cast<double>(other); }, x, g);
        const double across = static_cast<double>(g) / x * (static_cast<double>(other) / x);
        if (across < 1e38 && across > 1e-37)
          check([=](const Tensor& t) { return static_cast<double>(other) / t; }, x, g);
      }
    }
  }
}

TEST_CASE("pow: loops of their own give what the general one does, and the most negative exponent is refused") {
  for (const double x : {-1.5, -0.75, 0.5, 2.0}) {
    for (int n = -6; n <= 6; ++n) {
      CAPTURE(n);
      Tensor t = full({3}, x, {.dtype = DType::f64, .requires_grad = true});
      const Tensor y = pow(t, n);
      sum(y).backward();
      CHECK(y.to_vector<double>()[1] == doctest::Approx(std::pow(x, n)).epsilon(1e-14));
      CHECK(t.grad().to_vector<double>()[1] == doctest::Approx(n * std::pow(x, n - 1)).epsilon(1e-14));
    }
  }
  const int lowest = std::numeric_limits<int>::min();
  CHECK_THROWS_WITH_AS(pow(ones({1}), lowest), "[pow] n = -2147483648; expected at least -2147483647", ValueError);
  CHECK(pow(full({1}, 2), lowest + 1).item<float>() == 0);
}

// Here the functions of engine/math.h run as the kernels compile them (with fma and vectors, where the machine has
// them); math_test.cpp runs them as plain code.
TEST_CASE("f32 maps over the whole range of float") {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 20011) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits);
    float value = 0;
    std::memcpy(&value, &word, sizeof value);
    if (std::isfinite(value)) x.push_back(value);
  }
  const Tensor input = Tensor::from_vector(x), precise = input.to(DType::f64);
  const struct {
    std::string name;
    Map map;
  } kMaps[] = {{"exp", exp},   {"log", log},   {"tanh", tanh}, {"sigmoid", sigmoid},  {"elu", elu},
               {"gelu", gelu}, {"silu", silu}, {"sqrt", sqrt}, {"softplus", softplus}};
  for (const auto& [name, map] : kMaps) {
    const std::vector<float> got = map(input).to_vector<float>();
    const std::vector<double> want = map(precise).to_vector<double>();
    double worst = 0;
    float where = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float rounded = static_cast<float>(want[i]);
      if (got[i] == rounded || (std::isnan(got[i]) && std::isnan(rounded))) continue;
      const double excess = std::abs(got[i] - want[i]) / std::max(4e-7, 4 * 0x1p-24 * std::abs(want[i]));
      if (!(excess <= worst)) worst = std::isnan(excess) ? kInfinity : excess, where = x[i];
    }
    CHECK_MESSAGE(worst <= 1, name << " at " << where << ": " << worst << " times the bound");
  }
}

TEST_CASE("a result depends neither on the neighbours of an element nor on the number of threads") {
  const Tensor x = randn({70000});
  const Tensor shift = randn({7, 1, 100}), grid = randn({1, 100, 100});
  const auto run = [&](int threads) {
    const NumThreadsGuard guard(threads);
    std::vector<float> all;
    for (const Map map : {gelu, tanh, log, softplus}) {
      const std::vector<float> y = map(x).to_vector<float>();
      all.insert(all.end(), y.begin(), y.end());
    }
    Tensor a = shift.detach().clone().set_requires_grad(true), b = grid.detach().clone().set_requires_grad(true);
    sum(square(a * b) + a / (abs(b) + 1.0)).backward();
    for (const Tensor& t : {a.grad(), b.grad()}) {
      const std::vector<float> values = t.to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<float> one = run(1);
  for (const int threads : {2, 3, 16}) CHECK(same_bits(one, run(threads)));
  for (int i = 0; i < 40; ++i) {
    const float alone = gelu(full({}, x.data<float>()[i])).item<float>();
    CHECK(alone == one[static_cast<std::size_t>(i)]);
  }
}

TEST_CASE("gradients add over every use of a tensor") {
  Tensor x = full({}, 2, {.dtype = DType::f64, .requires_grad = true});
  mul(mul(x, x), x).backward();
  CHECK(x.grad().item<double>() == 12);
  x.zero_grad();
  (x + x).backward();
  CHECK(x.grad().item<double>() == 2);
  x.zero_grad();
  sum(x * ones({3, 2}, {.dtype = DType::f64}) + x).backward();  // broadcast twice
  CHECK(x.grad().item<double>() == 12);
}

TEST_CASE("operands may overlap each other, and the result may take the place of one") {
  const Tensor x = Tensor::from_vector<float>({1, 2, 3, 4, 5});
  const Tensor head = make_view(x, {4}, {1}, 0), tail = make_view(x, {4}, {1}, 1),
               back = make_view(x, {2, 2}, {1, 2}, 0);
  CHECK((head + tail).to_vector<float>() == std::vector<float>{3, 5, 7, 9});
  CHECK((back * back).to_vector<float>() == std::vector<float>{1, 9, 4, 16});
  Tensor y = head;
  y = y * tail;
  y = gelu(y) - y;
  CHECK(head.to_vector<float>() == std::vector<float>{1, 2, 3, 4});
  CHECK(y.to_vector<float>()[3] == 0);
}

TEST_CASE("equal operands share the gradient of maximum and minimum") {
  Tensor a = full({2}, 3, {.requires_grad = true}), b = full({2}, 3, {.requires_grad = true});
  sum(maximum(a, b) + minimum(a, b)).backward();
  CHECK(a.grad().to_vector<float>() == std::vector<float>{1, 1});
  CHECK(b.grad().to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("pow with exponent 0 has no slope, also at 0") {
  Tensor x = zeros({2}, {.requires_grad = true});
  const Tensor y = pow(x, 0);
  CHECK(y.to_vector<float>() == std::vector<float>{1, 1});
  sum(y).backward();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{0, 0});
}

TEST_CASE("wrong inputs of maps are refused with both shapes or dtypes") {
  const Tensor ids = arange(3, {.dtype = DType::i64});
  CHECK_THROWS_WITH_AS(gelu(ids), "[gelu] wrong dtype: expected f32 or f64, got i64 (3) on cpu; convert it with to()",
                       DTypeError);
  CHECK_THROWS_AS(pow(ids, 2), DTypeError);
  CHECK_THROWS_AS(exp(ones({2}).to(DType::bf16)), DTypeError);
  CHECK_THROWS_WITH_AS(ones({2, 3}) * ones({2}),
                       "[mul] shapes do not broadcast: (2, 3) and (2); expected equal sizes, or 1, from the right",
                       ShapeError);
  CHECK_THROWS_WITH_AS(
      ones({2}) + ones({2}, {.dtype = DType::f64}),
      "[add] dtypes differ: f32 (2) on cpu and f64 (2) on cpu; nothing is promoted, convert one with to()", DTypeError);
  CHECK_THROWS_AS(ids + ids, DTypeError);
  CHECK_THROWS_AS(lt(ids, ones({3})), DTypeError);
  CHECK_THROWS_AS(lt(ones({3}).to(DType::f16), ones({3}).to(DType::f16)), DTypeError);
  CHECK_THROWS_WITH_AS(eq(ids, 0.5),
                       "[eq] compared with a number that i64 doesn't hold: 0.5; expected an integer from "
                       "-9007199254740992 to 9007199254740992",
                       ValueError);
  CHECK_THROWS_AS(eq(ids.to(DType::u8), 256), ValueError);
  CHECK_THROWS_AS(eq(ids, kNan), ValueError);
  CHECK(eq(ids, 2).to_vector<bool>() == std::vector<bool>{false, false, true});
  // The process goes on.
  CHECK(gelu(ones({2})).numel() == 2);
}
