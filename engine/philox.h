// Philox4x32-10, a counter-based random function: (key, counter) -> four independent 32-bit words. (Salmon et al.,
// 2011.)
//
// Where this stands: below generator.h; kernels (CPU and CUDA) include it to draw exactly the numbers of their element.
// Everything here is always inlined and pure, so results do not depend on order, threads or device.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"

namespace polygrad::philox {

struct Words {
  std::uint32_t w[4];
};

// What a number is for; part of the key, so that two uses never share numbers.
enum class Domain : std::uint32_t { scalar = 0, fill = 1, dropout = 2, drop_path = 3, attention = 4 };

struct Key {
  std::uint32_t k0, k1;
  POLYGRAD_INLINE Key(std::uint64_t seed, Domain domain)
      : k0(static_cast<std::uint32_t>(seed)),
        k1(static_cast<std::uint32_t>(seed >> 32) ^ (static_cast<std::uint32_t>(domain) * 0x85EBCA6Bu)) {}
  POLYGRAD_INLINE void next() {
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
};

inline constexpr int kRounds = 10;

POLYGRAD_INLINE void apply_round(const Key& key, std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2,
                                 std::uint32_t& c3) {
  const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
  const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
  c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ key.k0;
  c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ key.k1;
  c1 = static_cast<std::uint32_t>(p1);
  c3 = static_cast<std::uint32_t>(p0);
}

POLYGRAD_INLINE Words draw(std::uint64_t seed, Domain domain, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                           std::uint32_t c3) {
  Key key(seed, domain);
  for (int round = 0; round < kRounds; ++round, key.next()) apply_round(key, c0, c1, c2, c3);
  return {{c0, c1, c2, c3}};
}

// The words of kDraws counters c0, c0 + 1, …, in order: the rounds of all of them side by side, as vector instructions.
inline constexpr int kDraws = 64;
POLYGRAD_INLINE void draw_many(std::uint64_t seed, Domain domain, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                               std::uint32_t c3, std::uint32_t (&words)[4 * kDraws]) {
  Key key(seed, domain);
  std::uint32_t c[4][kDraws];
  for (int i = 0; i < kDraws; ++i) {
    c[0][i] = c0 + static_cast<std::uint32_t>(i);
    c[1][i] = c1;
    c[2][i] = c2;
    c[3][i] = c3;
  }
  for (int round = 0; round < kRounds; ++round, key.next()) {
    for (int i = 0; i < kDraws; ++i) apply_round(key, c[0][i], c[1][i], c[2][i], c[3][i]);
  }
  for (int i = 0; i < kDraws; ++i) {
    for (int k = 0; k < 4; ++k) words[4 * i + k] = c[k][i];
  }
}

// [0, 1): a multiple of 2^-24, exact in f32.
POLYGRAD_INLINE float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace polygrad::philox
