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

POLYGRAD_INLINE Words draw(std::uint64_t seed, Domain domain, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2,
                           std::uint32_t c3) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed);
  std::uint32_t k1 = static_cast<std::uint32_t>(seed >> 32) ^ (static_cast<std::uint32_t>(domain) * 0x85EBCA6Bu);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// [0, 1): a multiple of 2^-24, exact in f32.
POLYGRAD_INLINE float uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace polygrad::philox
