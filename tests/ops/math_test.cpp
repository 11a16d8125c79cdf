// engine/math.h against libm in f64: every function over the whole range of float, sampled; and the loops over them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/math.h"

using namespace polygrad;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The distance of `got` from `exact` in units of the last place of float there.
double ulps(float got, double exact) {
  const float rounded = static_cast<float>(exact);
  if (std::isnan(exact) || std::isinf(rounded))
    return got == rounded || (std::isnan(got) && std::isnan(exact)) ? 0 : 1e9;
  if (!std::isfinite(got)) return 1e9;
  int exponent = 0;
  std::frexp(rounded, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

struct Worst {
  double ulps = 0;      // of all
  double absolute = 0;  // of those beyond 4 ulp
  float at = 0;
};

// All floats in steps of a prime, negative ones and NaNs included.
template <class F, class Exact>
Worst worst_error(F f, Exact exact) {
  Worst worst;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 1009) {
    const float x = math::from_bits(static_cast<std::uint32_t>(bits));
    const double want = exact(static_cast<double>(x));
    const float got = f(x);
    const double distance = ulps(got, want);
    worst.ulps = std::max(worst.ulps, distance);
    if (distance <= 4) continue;
    const double absolute = std::abs(got - want);
    if (!(absolute <= worst.absolute)) {
      worst.absolute = std::isnan(absolute) ? 1e9 : absolute;
      worst.at = x;
    }
  }
  return worst;
}

}  // namespace

// The claim: at most 4 ulp or 4e-7. `ulp` is what the function does better than that; 0 where it relies on the latter.
#define CHECK_FUNCTION(ulp, f, exact)                                                                   \
  do {                                                                                                  \
    const Worst worst = worst_error([](float x) { return f; }, [](double x) { return exact; });         \
    CHECK_MESSAGE(worst.absolute <= 4e-7, #f << " is off by " << worst.absolute << " at " << worst.at); \
    if (ulp > 0) CHECK_MESSAGE(worst.ulps <= ulp, #f << " is off by " << worst.ulps << " ulp");         \
  } while (false)

TEST_CASE("math: errors over the whole range of float") {
  CHECK_FUNCTION(2, math::exp(x), std::exp(x));
  CHECK_FUNCTION(2, math::expm1(x), std::expm1(x));
  CHECK_FUNCTION(2, math::log(x), std::log(x));
  CHECK_FUNCTION(2, math::log1p(math::abs(x)), std::log1p(std::abs(x)));
  CHECK_FUNCTION(3, math::tanh(x), std::tanh(x));
  CHECK_FUNCTION(4, math::erf(x), std::erf(x));
  CHECK_FUNCTION(0, math::sigmoid(x), 1 / (1 + std::exp(-x)));
  CHECK_FUNCTION(0, math::normal_cdf(x), std::erfc(-x / std::sqrt(2.0)) / 2);
  CHECK_FUNCTION(0, math::normal_density(x), std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0)));
  CHECK_FUNCTION(0, math::gelu(x), math::gelu(x));
  CHECK_FUNCTION(0, math::gelu_and_slope(x).slope, math::gelu_and_slope(x).slope);
}

TEST_CASE("math: gelu is nearer than the claim, and its two forms are one") {
  const double kScale = std::sqrt(2 * std::acos(-1.0));
  double worst_value = 0, worst_slope = 0;
  for (double at = -8; at <= 8; at += 1e-4) {
    const float x = static_cast<float>(at);
    const double exact = x, cdf = std::erfc(-exact / std::sqrt(2.0)) / 2;
    const math::ValueAndSlope<float> both = math::gelu_and_slope(x);
    CHECK(both.value == math::gelu(x));
    const double slope = cdf + exact * std::exp(-exact * exact / 2) / kScale;
    worst_value = std::max(worst_value, std::abs(both.value - exact * cdf) - 0x1p-24 * std::abs(exact * cdf));
    worst_slope = std::max(worst_slope, std::abs(both.slope - slope));
    const math::ValueAndSlope<double> precise = math::gelu_and_slope(exact);
    CHECK(std::abs(precise.value - exact * cdf) < 1e-15);
    CHECK(std::abs(precise.slope - slope) < 1e-15);
  }
  CHECK(worst_value < 1.5e-7);
  CHECK(worst_slope < 3.5e-7);
}

TEST_CASE("math: special values") {
  CHECK(math::exp(-kInfinity) == 0);
  CHECK(math::exp(kInfinity) == kInfinity);
  CHECK(math::exp(0.0f) == 1);
  CHECK(math::exp(88.8f) == kInfinity);
  CHECK(math::exp(-87.5f) == doctest::Approx(std::exp(-87.5)));  // the smallest normal numbers
  CHECK(math::exp(-103.0f) == std::numeric_limits<float>::denorm_min());
  CHECK(math::exp(-104.0f) == 0);
  CHECK(math::log(0.0f) == -kInfinity);
  CHECK(math::log(-0.0f) == -kInfinity);
  CHECK(math::log(1.0f) == 0);
  CHECK(math::log(kInfinity) == kInfinity);
  CHECK(std::isnan(math::log(-1.0f)));
  CHECK(math::log1p(kInfinity) == kInfinity);
  CHECK(math::log1p(1e-30f) == 1e-30f);
  CHECK(math::tanh(20.0f) == 1);
  CHECK(math::tanh(-kInfinity) == -1);
  CHECK(math::tanh(-1e-30f) == -1e-30f);
  CHECK(math::erf(kInfinity) == 1);
  CHECK(math::erf(-4.0f) == -1);
  CHECK(math::normal_cdf(-kInfinity) == 0);
  CHECK(math::sigmoid(-kInfinity) == 0);
  CHECK(std::signbit(math::tanh(-0.0f)));
  for (const float far : {10.0f, 1e30f, kInfinity}) {
    CHECK(math::gelu(far) == far);
    CHECK(math::gelu(-far) == 0);
    CHECK(math::gelu_and_slope(far).slope == 1);
    CHECK(math::gelu_and_slope(-far).slope == 0);
    CHECK(math::normal_cdf(far) == 1);
    CHECK(math::normal_cdf(-far) == 0);
  }
  for (const float nan : {kNan, -kNan}) {
    CHECK(std::isnan(math::exp(nan)));
    CHECK(std::isnan(math::expm1(nan)));
    CHECK(std::isnan(math::log(nan)));
    CHECK(std::isnan(math::log1p(nan)));
    CHECK(std::isnan(math::tanh(nan)));
    CHECK(std::isnan(math::erf(nan)));
    CHECK(std::isnan(math::sigmoid(nan)));
    CHECK(std::isnan(math::normal_cdf(nan)));
    CHECK(std::isnan(math::gelu(nan)));
    CHECK(std::isnan(math::gelu_and_slope(nan).slope));
    CHECK(std::isnan(math::at_least(nan, 0.0f)));
    CHECK(std::isnan(math::at_most(nan, 0.0f)));
  }
}

TEST_CASE("math: integer powers") {
  CHECK(math::pow_int(3.0f, 0) == 1);
  CHECK(math::pow_int(0.0f, 0) == 1);
  CHECK(math::pow_int(-2.0f, 5) == -32);
  CHECK(math::pow_int(2.0f, -2) == 0.25f);
  CHECK(math::pow_int(0.0f, -1) == kInfinity);
  CHECK(math::pow_int(1.0, -2147483647 - 1) == 1);
  CHECK(math::pow_int(1.5, 7) == doctest::Approx(std::pow(1.5, 7)));
}

TEST_CASE("math: pairs of normal numbers") {
  // Against Box and Muller's formula in f64, over words that touch every quadrant and both ends of the radius.
  double largest = 0, sum = 0, squares = 0, product = 0;
  std::uint32_t a = 1, b = 1;
  const int kPairs = 400000;
  for (int i = 0; i < kPairs; ++i) {
    float n0 = 0, n1 = 0;
    math::normal_pair(a, b, &n0, &n1);
    const double radius = std::sqrt(-2 * std::log(((a >> 8) + 1) * 0x1p-24)), angle = 2 * std::acos(-1.0) * b * 0x1p-32;
    largest = std::max({largest, std::abs(n0 - radius * std::cos(angle)), std::abs(n1 - radius * std::sin(angle))});
    sum += n0 + n1;
    squares += n0 * n0 + n1 * n1;
    product += n0 * n1;
    a = a * 1664525u + 1013904223u;
    b = b * 22695477u + 12345u;
  }
  CHECK(largest < 1e-6);
  CHECK(std::abs(sum / (2 * kPairs)) < 0.005);
  CHECK(squares / (2 * kPairs) == doctest::Approx(1).epsilon(0.005));
  CHECK(std::abs(product / kPairs) < 0.005);
  float n0 = 0, n1 = 0;
  math::normal_pair(0xffffffffu, 0, &n0, &n1);  // the radius is 0
  CHECK(n0 == 0);
  CHECK(n1 == 0);
  math::normal_pair(0, 0, &n0, &n1);  // the longest radius, along the first axis
  CHECK(n0 == doctest::Approx(5.768108));
  CHECK(n1 == 0);
}

// These bits may never change, on no machine: seeds in published results depend on them.
TEST_CASE("math: the bits of normal numbers") {
  const struct {
    std::uint32_t a, b, n0, n1;
  } kKnown[] = {
      {0x00000000u, 0x10000000u, 0x40aa8777u, 0x400d4560u}, {0x12345678u, 0x9abcdef0u, 0xbfe92f36u, 0xbfb39380u},
      {0x80000000u, 0x60000000u, 0xbf55224cu, 0x3f55224cu}, {0xdeadbeefu, 0xcafef00du, 0x3e102e06u, 0xbf024d23u},
      {0xfffffeffu, 0x3fffffffu, 0x2b0e2c19u, 0x39b504f3u}, {0x00ffffffu, 0xe0000001u, 0x4016b560u, 0xc016b560u},
  };
  for (const auto& known : kKnown) {
    float n0 = 0, n1 = 0;
    math::normal_pair(known.a, known.b, &n0, &n1);
    CHECK(math::to_bits(n0) == known.n0);
    CHECK(math::to_bits(n1) == known.n1);
  }
}
