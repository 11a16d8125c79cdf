// Random numbers: Philox against its published vectors, distributions against their moments, and no hidden state.
#include "engine/generator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "engine/error.h"
#include "engine/factory.h"
#include "engine/parallel.h"
#include "engine/philox.h"

using namespace polygrad;

namespace {

std::array<std::uint32_t, 4> words(std::uint64_t seed, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                                   std::uint32_t c3, philox::Domain domain = philox::Domain::scalar) {
  const philox::Words w = philox::draw(seed, domain, c0, c1, c2, c3);
  return {w.w[0], w.w[1], w.w[2], w.w[3]};
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments m;
  const double n = static_cast<double>(values.size());
  for (const double v : values) m.mean += v / n;
  for (const double v : values) {
    const double d = v - m.mean;
    m.variance += d * d / n;
    m.skewness += d * d * d / n;
    m.kurtosis += d * d * d * d / n;
  }
  m.skewness /= std::pow(m.variance, 1.5);
  m.kurtosis /= m.variance * m.variance;
  return m;
}

template <class F>
std::vector<double> draws(int count, const F& f) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = f();
  return values;
}

// Chi-square of equally likely cells.
double chi_square(const std::vector<int>& counts) {
  double total = 0, sum = 0;
  for (const int count : counts) total += count;
  const double expected = total / static_cast<double>(counts.size());
  for (const int count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  using W = std::array<std::uint32_t, 4>;
  CHECK(words(0, 0, 0, 0, 0) == W{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words(~std::uint64_t{0}, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff) ==
        W{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words(0x299f31d0a4093822, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344) ==
        W{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("Philox: many draws side by side are the draws one by one, also where the counter runs over") {
  for (const std::uint32_t first : {0u, 77u, 0xffffffe0u}) {
    std::uint32_t many[4 * philox::kDraws];
    philox::draw_many(0x299f31d0a4093822, philox::Domain::dropout, first, 5, 6, 7, many);
    for (std::uint32_t i = 0; i < philox::kDraws; ++i) {
      const philox::Words one = philox::draw(0x299f31d0a4093822, philox::Domain::dropout, first + i, 5, 6, 7);
      for (std::uint32_t k = 0; k < 4; ++k) CHECK(many[4 * i + k] == one.w[k]);
    }
  }
}

TEST_CASE("two purposes never share numbers") {
  std::set<std::array<std::uint32_t, 4>> seen;
  using philox::Domain;
  for (const Domain domain : {Domain::scalar, Domain::fill, Domain::dropout, Domain::drop_path, Domain::attention}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) seen.insert(words(seed, 0, 0, 0, 0, domain));
  }
  CHECK(seen.size() == 20);
}

TEST_CASE("a generator is its three numbers") {
  Generator a(7, 3, 40), b(7, 3, 40);
  CHECK(a.next_u64() == b.next_u64());
  const RandomStream stream = a.take();
  CHECK(stream.seed == 7);
  CHECK(stream.offset == 3);
  CHECK(stream.first_sample == 40);
  CHECK(a.offset() == 4);
  CHECK(a.next_u32() == Generator(7, 4).next_u32());  // taking a stream starts the next one at its beginning
  CHECK(Generator(0).next_u32() == 0x6627e8d5);
  CHECK(Generator(1).next_u64() != Generator(2).next_u64());
  CHECK(Generator(1, 0).next_u64() != Generator(1, 1).next_u64());
  CHECK(Generator(1, std::uint64_t{1} << 32).next_u64() != Generator(1, 0).next_u64());
}

TEST_CASE("uniform numbers") {
  Generator generator(11);
  std::vector<int> cells(64);
  bool in_range = true, on_grid = true;
  const std::vector<double> values = draws(200'000, [&] {
    const float u = generator.uniform();
    in_range &= u >= 0 && u < 1;
    on_grid &= u * 0x1p24f == std::floor(u * 0x1p24f);
    ++cells[static_cast<std::size_t>(u * 64)];
    return static_cast<double>(u);
  });
  CHECK(in_range);
  CHECK(on_grid);
  const Moments m = moments(values);
  CHECK(std::abs(m.mean - 0.5) < 4 * std::sqrt(1.0 / 12 / 200'000));
  CHECK(m.variance == doctest::Approx(1.0 / 12).epsilon(0.01));
  CHECK(chi_square(cells) < 63 + 5 * std::sqrt(2.0 * 63));
  const std::vector<double> wide = draws(1000, [&] { return generator.uniform(-3, 5); });
  CHECK(*std::min_element(wide.begin(), wide.end()) >= -3);
  CHECK(*std::max_element(wide.begin(), wide.end()) < 5);
}

TEST_CASE("normal numbers") {
  Generator generator(12);
  const Moments m = moments(draws(200'000, [&] { return generator.normal(); }));
  CHECK(std::abs(m.mean) < 4 / std::sqrt(200'000.0));
  CHECK(m.variance == doctest::Approx(1).epsilon(0.015));
  CHECK(std::abs(m.skewness) < 0.03);
  CHECK(m.kurtosis == doctest::Approx(3).epsilon(0.03));
  const std::vector<double> filled =
      randn({400'000}, {.dtype = DType::f64, .generator = &generator}).to_vector<double>();
  const Moments f = moments(filled);
  CHECK(std::abs(f.mean) < 4 / std::sqrt(400'000.0));
  CHECK(f.variance == doctest::Approx(1).epsilon(0.01));
  CHECK(f.kurtosis == doctest::Approx(3).epsilon(0.02));
  const auto beyond = [&](double limit) {
    return static_cast<double>(
               std::count_if(filled.begin(), filled.end(), [=](double v) { return std::abs(v) > limit; })) /
           4e5;
  };
  CHECK(beyond(1) == doctest::Approx(0.317310).epsilon(0.01));
  CHECK(beyond(3) == doctest::Approx(0.0026998).epsilon(0.15));
  double product = 0;  // the two of a pair are independent
  for (std::size_t i = 0; i + 1 < filled.size(); i += 2) product += filled[i] * filled[i + 1];
  CHECK(std::abs(product / 2e5) < 4 / std::sqrt(2e5));
}

TEST_CASE("beta numbers") {
  Generator generator(13);
  const double parameters[][2] = {{0.2, 0.2}, {0.8, 0.8}, {1, 1}, {2, 5}, {0.1, 3}, {30, 10}};
  for (const auto& [a, b] : parameters) {
    CAPTURE(a);
    CAPTURE(b);
    bool in_range = true;
    const Moments m = moments(draws(60'000, [&, a = a, b = b] {
      const double value = generator.beta(a, b);
      in_range &= value >= 0 && value <= 1;
      return value;
    }));
    const double mean = a / (a + b), variance = a * b / ((a + b) * (a + b) * (a + b + 1));
    CHECK(in_range);
    CHECK(std::abs(m.mean - mean) < 5 * std::sqrt(variance / 60'000));
    CHECK(m.variance == doctest::Approx(variance).epsilon(0.04));
  }
  CHECK_THROWS_AS(generator.beta(0, 1), ValueError);
  CHECK_THROWS_AS(generator.beta(1, -1), ValueError);
  CHECK_THROWS_AS(generator.beta(std::numeric_limits<double>::quiet_NaN(), 1), ValueError);
  const double tiny = generator.beta(1e-300, 1e-300);
  CHECK((tiny >= 0 && tiny <= 1));
}

TEST_CASE("integers are unbiased, and reach both ends") {
  Generator generator(14);
  std::vector<int> cells(7);
  for (int i = 0; i < 70'000; ++i) ++cells[static_cast<std::size_t>(generator.integer(-3, 4) + 3)];
  CHECK(chi_square(cells) < 6 + 5 * std::sqrt(2.0 * 6));
  // A span of three quarters of 2^64: a plain remainder would hit its first third twice as often.
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min(), kHigh = kLow / 2 * -1;
  std::vector<int> thirds(3);
  for (int i = 0; i < 30'000; ++i) {
    const std::int64_t value = generator.integer(kLow, kHigh);
    ++thirds[value < kLow / 2 ? 0 : value < 0 ? 1 : 2];
  }
  CHECK(chi_square(thirds) < 2 + 5 * 2);
  CHECK(generator.integer(5, 6) == 5);
  CHECK_THROWS_AS(generator.integer(5, 5), ValueError);
  CHECK_THROWS_AS(generator.integer(6, 5), ValueError);
}

TEST_CASE("bernoulli") {
  Generator generator(15);
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) hits += generator.bernoulli(0.1);
  CHECK(std::abs(hits - 10'000) < 5 * std::sqrt(9'000.0));
  CHECK_FALSE(generator.bernoulli(0));
  CHECK(generator.bernoulli(1));
}

TEST_CASE("permutations") {
  Generator generator(16);
  std::vector<std::int64_t> order = generator.permutation(1000);
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  bool complete = true;
  for (std::size_t i = 0; i < order.size(); ++i) complete &= order[i] == static_cast<std::int64_t>(i);
  CHECK(complete);
  std::vector<int> cells(6);
  for (int i = 0; i < 60'000; ++i) {
    const std::vector<std::int64_t> p = generator.permutation(3);
    ++cells[static_cast<std::size_t>(2 * p[0] + (p[1] > p[2]))];
  }
  CHECK(chi_square(cells) < 5 + 5 * std::sqrt(2.0 * 5));
  CHECK(generator.permutation(0).empty());
  CHECK(generator.permutation(1) == std::vector<std::int64_t>{0});
}

TEST_CASE("filled tensors don't depend on threads or size") {
  const auto fill = [](std::int64_t count, bool normal) {
    Generator generator(21, 5);
    const TensorOptions options{.generator = &generator};
    const Tensor x = normal ? randn({count}, options) : rand({count}, options);
    CHECK(generator.offset() == 6);
    return x.to_vector<float>();
  };
  for (const bool normal : {false, true}) {
    const std::vector<float> expected = fill(200'001, normal);
    for (const int threads : {1, 2, 3, 16}) {
      const NumThreadsGuard guard(threads);
      CHECK(fill(200'001, normal) == expected);
    }
    const std::vector<float> shorter = fill(70'002, normal);
    CHECK(std::equal(shorter.begin(), shorter.end(), expected.begin()));
  }
  Generator a(21, 5), b(21, 5);
  const std::vector<float> single = randn({99}, {.generator = &a}).to_vector<float>();
  const std::vector<double> wide = randn({99}, {.dtype = DType::f64, .generator = &b}).to_vector<double>();
  CHECK(std::equal(single.begin(), single.end(), wide.begin()));
}

TEST_CASE("the default generator is the thread's own") {
  manual_seed(5);
  const std::vector<float> here = randn({4}).to_vector<float>();
  std::vector<float> there, seeded;
  std::thread([&] {
    there = randn({4}).to_vector<float>();
    manual_seed(5);
    seeded = randn({4}).to_vector<float>();
  }).join();
  CHECK(there != here);
  CHECK(seeded == here);
  CHECK(randn({4}).to_vector<float>() != here);  // the stream moves on
  manual_seed(0);
}

TEST_CASE("derived seeds are all different") {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::uint64_t epoch = 0; epoch < 10; ++epoch) {
      for (std::uint64_t index = 0; index < 100; ++index) seeds.insert(derive_seed(seed, epoch, index));
    }
  }
  CHECK(seeds.size() == 10'000);
}
