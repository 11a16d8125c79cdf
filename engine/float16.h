// float16 (IEEE half precision): the conversions, as text that every loop can have inline.
//
// Where this stands: beside bfloat16.h, below the engine's and ops' kernels, on the CPU and under nvcc, where the GPU's
// own instructions do the same. dtype.h declares the type and the same conversions as functions.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/tensor_ref.h"

namespace polygrad {

POLYGRAD_INLINE float widen(Float16 value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  std::uint32_t mantissa = value.bits & 0x3ffu, bits = sign;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
  } else if (mantissa != 0) {  // a denormal: normalise it, f32 has room
    std::uint32_t shift = 0;
    while (!(mantissa & 0x400u)) {
      mantissa <<= 1;
      ++shift;
    }
    bits = sign | ((113u - shift) << 23) | ((mantissa & 0x3ffu) << 13);
  }
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
#endif
}

// To nearest, ties to even; too large becomes infinity, a NaN stays one.
POLYGRAD_INLINE Float16 round_to_float16(float value) {
#if defined(__CUDA_ARCH__)
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<std::uint16_t>(sign | 0x7c00u)};  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                 // below the smallest normal 2^-14: the result is a multiple of 2^-24
    if (magnitude < 0x33000000u) return {sign};  // below 2^-25: zero
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    std::uint32_t result = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    if (rest > half || (rest == half && (result & 1u))) ++result;
    return {static_cast<std::uint16_t>(sign | result)};
  }
  const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
#endif
}

}  // namespace polygrad
