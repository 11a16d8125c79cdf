#include "tests/reference/dropout.h"

namespace reference {
namespace {

// The number in [0, 1) of a draw: its upper 24 bits.
double unit(std::uint32_t word) { return static_cast<double>(word / 256) / 16777216.0; }

// domain: 2 for dropout, 3 for drop path.
std::array<std::uint32_t, 4> draw(const Stream& stream, std::uint32_t domain, std::uint64_t group,
                                  std::uint64_t sample) {
  const std::uint64_t word = 4294967296u;
  const std::array<std::uint32_t, 2> key = {
      static_cast<std::uint32_t>(stream.seed % word),
      static_cast<std::uint32_t>(stream.seed / word) ^ static_cast<std::uint32_t>(domain * 0x85EBCA6Bull)};
  return philox(key, {static_cast<std::uint32_t>(group % word), static_cast<std::uint32_t>(sample % word),
                      static_cast<std::uint32_t>(sample / word), static_cast<std::uint32_t>(stream.offset % word)});
}

std::size_t sample_length(const Array& x) {
  return x.shape.empty() ? 1 : x.shape[0] == 0 ? 0 : x.data.size() / static_cast<std::size_t>(x.shape[0]);
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 2> key, std::array<std::uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] += 0x9E3779B9u;  // the golden ratio
      key[1] += 0xBB67AE85u;  // sqrt(3) - 1
    }
    const std::uint64_t a = static_cast<std::uint64_t>(counter[0]) * 0xD2511F53u;
    const std::uint64_t b = static_cast<std::uint64_t>(counter[2]) * 0xCD9E8D57u;
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
  }
  return counter;
}

Array dropout(const Array& x, double p, const Stream& stream) {
  Array y(x.shape);
  const std::size_t length = sample_length(x);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const std::uint64_t sample = static_cast<std::uint64_t>(stream.first_sample) + i / length, j = i % length;
    const double u = unit(draw(stream, 2, j / 4, sample)[j % 4]);
    y.data[i] = u < p ? 0 : x.data[i] / (1 - p);
  }
  return y;
}

Array drop_path(const Array& x, double p, const Stream& stream) {
  Array y(x.shape);
  const std::size_t length = sample_length(x);
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const double u = unit(draw(stream, 3, 0, static_cast<std::uint64_t>(stream.first_sample) + i / length)[0]);
    y.data[i] = u < p ? 0 : x.data[i] / (1 - p);
  }
  return y;
}

Array residual_add(const Array& x, const Array& branch, double p, const Stream& stream) {
  Array y = drop_path(branch, p, stream);
  for (std::size_t i = 0; i < x.data.size(); ++i) y.data[i] += x.data[i];
  return y;
}

}  // namespace reference
