// math: exp, log, erf, tanh and their relatives as plain scalar code that a compiler can vectorise.
//
// Where this stands: below all kernels, on the CPU and under nvcc; it includes nothing of ours but tensor_ref.h. The
// float functions are straight lines of adds, multiplies and selects, without a branch, a table or a library call, so a
// loop over one of them becomes vector instructions. Their error is at most 4 ulp or 4e-7 absolute over all floats,
// NaN, infinities and denormals included (tests/ops/math_test.cpp). The double functions are libm's.
// How they are made: each reduces its argument to a small interval and evaluates a minimax polynomial there, whose
// coefficients we computed with Remez's exchange algorithm at 40 digits.
// Read next: ops/kernels/unary_functors.h (the elementwise maps built from these).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "engine/tensor_ref.h"

namespace polygrad::math {

// --- building blocks ------------------------------------------------------------------------------------------------

POLYGRAD_INLINE std::uint32_t to_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
POLYGRAD_INLINE float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// a·b + c: rounded once where the target has the instruction, else twice (a library call would cost 100 times as much).
POLYGRAD_INLINE float fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return ::fmaf(a, b, c);
#elif defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
POLYGRAD_INLINE double fma(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return ::fma(a, b, c);
#elif defined(__FMA__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

POLYGRAD_INLINE float abs(float x) { return from_bits(to_bits(x) & 0x7fffffffu); }
POLYGRAD_INLINE double abs(double x) { return ::fabs(x); }

// magnitude with the sign of `sign`; magnitude >= 0.
POLYGRAD_INLINE float with_sign_of(float magnitude, float sign) {
  return from_bits(to_bits(magnitude) | (to_bits(sign) & 0x80000000u));
}

// A NaN in `x` passes through both.
template <class T>
POLYGRAD_INLINE T at_most(T x, T limit) {
  return limit < x ? limit : x;
}
template <class T>
POLYGRAD_INLINE T at_least(T x, T limit) {
  return limit > x ? limit : x;
}

POLYGRAD_INLINE float sqrt(float x) {
#if defined(__CUDA_ARCH__)
  return ::sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}
POLYGRAD_INLINE double sqrt(double x) {
#if defined(__CUDA_ARCH__)
  return ::sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

// x^n for an integer n of any sign; 1 for n = 0.
template <class T>
POLYGRAD_INLINE T pow_int(T x, int n) {
  std::uint32_t m = n < 0 ? 0u - static_cast<std::uint32_t>(n) : static_cast<std::uint32_t>(n);
  T power = 1;
  for (T square = x; m != 0; m >>= 1, square *= square) {
    if (m & 1) power *= square;
  }
  return n < 0 ? T(1) / power : power;
}

namespace detail {

// ln 2 in two parts; the first has so few bits that an integer exponent times it is exact.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;

// 2^n for -126 <= n <= 127.
POLYGRAD_INLINE float exp2_int(std::int32_t n) { return from_bits(static_cast<std::uint32_t>(n + 127) << 23); }

// x = n·ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^22.
struct ExpArgument {
  std::int32_t n;
  float r;
};
POLYGRAD_INLINE ExpArgument reduce_exp(float x) {
  const float kMagic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, kept in the low bits
  const float shifted = fma(x, 1.44269504f, kMagic);
  const float n = shifted - kMagic;
  const float r = fma(n, -kLn2Low, fma(n, -kLn2High, x));
  return {static_cast<std::int32_t>(to_bits(shifted) - to_bits(kMagic)), r};
}
// e^r - 1 for |r| <= ln 2 / 2.
POLYGRAD_INLINE float expm1_small(float r) {
  float q = fma(0.001381314416f, r, 0.008369418807f);
  q = fma(q, r, 0.0416684568f);
  q = fma(q, r, 0.1666651479f);
  q = fma(q, r, 0.4999999305f);
  return fma(r * r, q, r);
}

// log(1 + f) = f - f²/2 + f³·p(f) for sqrt(1/2) <= 1 + f <= sqrt(2); this is p.
template <class Fma>
POLYGRAD_INLINE float log_tail(float f, Fma multiply_add) {
  float p = multiply_add(-0.07859695693f, f, 0.1288170135f);
  p = multiply_add(p, f, -0.1312874573f);
  p = multiply_add(p, f, 0.1418118359f);
  p = multiply_add(p, f, -0.1662455446f);
  p = multiply_add(p, f, 0.2000228666f);
  p = multiply_add(p, f, -0.2500081039f);
  return multiply_add(p, f, 0.3333331672f);
}
// x = 2^exponent · (1 + f), for a normal positive x.
struct LogArgument {
  float exponent, f;
};
POLYGRAD_INLINE LogArgument reduce_log(float x) {
  const std::uint32_t kSqrtHalf = 0x3f3504f3u;
  const std::uint32_t bits = to_bits(x);
  const std::int32_t exponent = static_cast<std::int32_t>(bits - kSqrtHalf) >> 23;
  return {static_cast<float>(exponent), from_bits(bits - (static_cast<std::uint32_t>(exponent) << 23)) - 1.0f};
}

struct FusedMultiplyAdd {
  POLYGRAD_INLINE float operator()(float a, float b, float c) const { return fma(a, b, c); }
};
struct SeparateMultiplyAdd {
  POLYGRAD_INLINE float operator()(float a, float b, float c) const { return a * b + c; }
};

}  // namespace detail

// --- exponential and logarithm --------------------------------------------------------------------------------------

POLYGRAD_INLINE float exp(float x) {
  // Beyond these bounds the result is infinity and 0 all the same. The scale 2^n is applied in two halves, so that
  // each half is a normal number while the result overflows or becomes denormal as it should.
  const detail::ExpArgument a = detail::reduce_exp(at_least(at_most(x, 89.0f), -104.0f));
  const std::int32_t half = a.n >> 1;
  const float value = 1.0f + detail::expm1_small(a.r);
  return value * detail::exp2_int(half) * detail::exp2_int(a.n - half);
}
POLYGRAD_INLINE double exp(double x) { return ::exp(x); }

// e^x - 1, exact where e^x is close to 1.
POLYGRAD_INLINE float expm1(float x) {
  const detail::ExpArgument a = detail::reduce_exp(at_least(at_most(x, 89.0f), -30.0f));
  const float half = detail::exp2_int(a.n - 1);
  return 2.0f * fma(half, detail::expm1_small(a.r), half - 0.5f);
}
POLYGRAD_INLINE double expm1(double x) { return ::expm1(x); }

// -infinity at 0, NaN below.
POLYGRAD_INLINE float log(float x) {
  const float kInfinity = from_bits(0x7f800000u);
  const bool denormal = x < 1.17549435e-38f;
  const detail::LogArgument a = detail::reduce_log(denormal ? x * 33554432.0f : x);  // 2^25
  const float exponent = denormal ? a.exponent - 25.0f : a.exponent;
  const float f = a.f, square = f * f;
  float tail = fma(exponent, detail::kLn2Low, square * f * detail::log_tail(f, detail::FusedMultiplyAdd{}));
  tail = fma(-0.5f, square, tail);
  const float value = fma(exponent, detail::kLn2High, f + tail);
  const float special = x == 0.0f ? -kInfinity : (x < 0.0f ? from_bits(0x7fc00000u) : x);
  return x > 0.0f && x < kInfinity ? value : special;
}
POLYGRAD_INLINE double log(double x) { return ::log(x); }

// log(1 + x) for x >= 0, exact for small x: what rounding 1 + x lost is put back to first order.
POLYGRAD_INLINE float log1p(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);
  const float correction = x < 1.0f ? lost / sum : 0.0f;
  return log(sum) + correction;
}
POLYGRAD_INLINE double log1p(double x) { return ::log1p(x); }

// --- sigmoids -------------------------------------------------------------------------------------------------------

POLYGRAD_INLINE float tanh(float x) {
  const float t = expm1(2.0f * at_most(abs(x), 10.0f));
  return with_sign_of(t / (t + 2.0f), x);
}
POLYGRAD_INLINE double tanh(double x) { return ::tanh(x); }

template <class T>
POLYGRAD_INLINE T sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

namespace detail {

// From here on erf rounds to ±1.
inline constexpr float kErfOne = 3.92f;
// erf(t) / t for |t| <= kErfOne.
POLYGRAD_INLINE float erf_ratio(float t) {
  const float v = fma(t * t, 0.1301541025f, -1.0f);  // t² moved to [-1, 1], where the polynomial is well conditioned
  float p = fma(-0.0008439347394f, v, 0.002098757254f);
  p = fma(p, v, -0.001394510293f);
  p = fma(p, v, 0.001919974936f);
  p = fma(p, v, -0.007660573818f);
  p = fma(p, v, 0.01420994821f);
  p = fma(p, v, -0.01999499163f);
  p = fma(p, v, 0.02969756798f);
  p = fma(p, v, -0.04343687723f);
  p = fma(p, v, 0.0583959962f);
  p = fma(p, v, -0.07401981464f);
  p = fma(p, v, 0.09059697182f);
  p = fma(p, v, -0.1091792253f);
  p = fma(p, v, 0.134084555f);
  p = fma(p, v, -0.1801086282f);
  p = fma(p, v, 0.3607368113f);
  return p;
}

}  // namespace detail

// Odd in x, and exactly ±1 where it rounds to that.
POLYGRAD_INLINE float erf(float x) {
  const float t = at_least(at_most(x, detail::kErfOne), -detail::kErfOne);
  return abs(x) >= detail::kErfOne ? with_sign_of(1.0f, x) : t * detail::erf_ratio(t);
}
POLYGRAD_INLINE double erf(double x) { return ::erf(x); }

// --- the normal distribution ----------------------------------------------------------------------------------------

// The probability that a standard normal number is below x: GELU is x times this. Not rounded on the way to erf, so
// that the left tail keeps its digits for the product.
POLYGRAD_INLINE float normal_cdf(float x) {
  const float y = x * 0.70710678f;
  const float t = at_least(at_most(y, detail::kErfOne), -detail::kErfOne);
  const float value = fma(0.5f * t, detail::erf_ratio(t), 0.5f);
  return abs(y) >= detail::kErfOne ? (y > 0.0f ? 1.0f : 0.0f) : value;
}
POLYGRAD_INLINE double normal_cdf(double x) { return 0.5 * ::erfc(x * -0.70710678118654752440); }
// Its derivative, e^(-x²/2) / sqrt(2π).
POLYGRAD_INLINE float normal_density(float x) { return 0.398942280f * exp(-0.5f * x * x); }
POLYGRAD_INLINE double normal_density(double x) { return 0.39894228040143267794 * exp(-0.5 * x * x); }

// Two independent standard normal numbers from two random words (Box and Muller, 1958). Plain multiplies and adds with
// one rounding each, and no fma, so that every CPU gives the same bits.
POLYGRAD_INLINE void normal_pair(std::uint32_t a, std::uint32_t b, float* n0, float* n1) {
  // Radius: u in (0, 1], a multiple of 2^-24.
  const float u = static_cast<float>((a >> 8) + 1u) * 0x1p-24f;
  const detail::LogArgument argument = detail::reduce_log(u);
  const float f = argument.f, square = f * f;
  const float tail = square * f * detail::log_tail(f, detail::SeparateMultiplyAdd{}) - 0.5f * square;
  const float log_u = argument.exponent * detail::kLn2High + (f + (tail + argument.exponent * detail::kLn2Low));
  const float radius = sqrt(at_least(-2.0f * log_u, 0.0f));
  // Angle: b / 2^32 of a turn = quadrant·π/2 + z·π/2 with -1/2 <= z < 1/2.
  const std::uint32_t quadrant = (b + 0x20000000u) >> 30;
  const float z = static_cast<float>(static_cast<std::int32_t>(b - (quadrant << 30))) * 0x1p-30f;
  const float w = z * z;
  const float sine = z * (1.570796322f + w * (-0.6459634786f + w * (0.07968022807f + w * -0.004602176997f)));
  const float cosine = 1.0f + w * (-1.233700541f + w * (0.2536692039f + w * (-0.02086007132f + w * 0.0009036317033f)));
  const bool odd = quadrant & 1u;
  const float s = odd ? cosine : sine, c = odd ? sine : cosine;
  *n0 = radius * (quadrant == 1u || quadrant == 2u ? -c : c);
  *n1 = radius * (quadrant >= 2u ? -s : s);
}

}  // namespace polygrad::math
