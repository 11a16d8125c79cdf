#include "engine/generator.h"

#include <cmath>

#include "engine/error.h"
#include "engine/format.h"
#include "engine/math.h"
#include "engine/philox.h"

namespace polygrad {

RandomStream Generator::take() {
  const RandomStream stream = stream_;
  ++stream_.offset;
  drawn_ = 0;
  return stream;
}

std::uint32_t Generator::next_u32() {
  const std::uint64_t block = drawn_ / 4;
  const philox::Words words = philox::draw(
      stream_.seed, philox::Domain::scalar, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
      static_cast<std::uint32_t>(stream_.offset), static_cast<std::uint32_t>(stream_.offset >> 32));
  return words.w[drawn_++ % 4];
}

std::uint64_t Generator::next_u64() {
  const std::uint64_t low = next_u32();
  return low | (static_cast<std::uint64_t>(next_u32()) << 32);
}

float Generator::uniform() { return philox::uniform(next_u32()); }

double Generator::uniform(double low, double high) {
  return low + (high - low) * (static_cast<double>(next_u64() >> 11) * 0x1p-53);
}

std::int64_t Generator::integer(std::int64_t low, std::int64_t high) {
  if (low >= high) throw ValueError(format("[Generator::integer] the range [{}, {}) is empty", low, high));
  const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  // Draws below 2^64 mod span are refused: the rest is a whole number of spans.
  const std::uint64_t refused = (0 - span) % span;
  std::uint64_t draw = next_u64();
  while (draw < refused) draw = next_u64();
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + draw % span);
}

bool Generator::bernoulli(double probability) { return static_cast<double>(next_u64() >> 11) * 0x1p-53 < probability; }

double Generator::normal() {
  float first, second;
  const std::uint32_t a = next_u32();
  math::normal_pair(a, next_u32(), &first, &second);
  return first;
}

namespace {

// Marsaglia and Tsang's method; shapes below 1 by the boost gamma(a) = gamma(a + 1) * u^(1/a).
double gamma_draw(Generator& generator, double shape) {
  if (shape < 1) return gamma_draw(generator, shape + 1) * std::pow(generator.uniform(0x1p-53, 1), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = generator.normal();
    const double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (v <= 0) continue;
    if (std::log(generator.uniform(0x1p-53, 1)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

double Generator::beta(double a, double b) {
  if (!(a > 0) || !(b > 0)) {
    throw ValueError(format("[Generator::beta] parameters {} and {}; expected both above 0", a, b));
  }
  const double x = gamma_draw(*this, a), y = gamma_draw(*this, b);
  return x + y > 0 ? x / (x + y) : 0.5;
}

std::vector<std::int64_t> Generator::permutation(std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n < 0 ? 0 : n));
  for (std::int64_t i = 0; i < n; ++i) order[static_cast<std::size_t>(i)] = i;
  for (std::int64_t i = n - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(integer(0, i + 1))]);
  }
  return order;
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator() = Generator(seed); }

std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  // The finaliser of SplitMix64 after each word.
  const auto mix = [](std::uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  };
  return mix(mix(mix(seed) ^ a) ^ b);
}

}  // namespace polygrad
