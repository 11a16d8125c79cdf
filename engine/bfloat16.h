// bfloat16: the upper half of a float. The conversions, as text that every loop can have inline.
//
// Where this stands: beside math.h, below the engine's and ops' kernels, on the CPU and under nvcc. dtype.h declares
// the type and the same conversions as functions.
// Both loops are plain integer code without a branch, so that a compiler makes vectors of them: a row is converted at
// the speed of the memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/tensor_ref.h"

namespace polygrad {

POLYGRAD_INLINE float widen(BFloat16 value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

// To nearest, ties to even; too large becomes infinity, a NaN stays one (quiet, with its sign and upper payload).
POLYGRAD_INLINE BFloat16 round_to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
  return {static_cast<std::uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16)};
}

POLYGRAD_INLINE void widen(const BFloat16* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}
POLYGRAD_INLINE void round_to_bfloat16(const float* __restrict from, BFloat16* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = round_to_bfloat16(from[i]);
}

}  // namespace polygrad
