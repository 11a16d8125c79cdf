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

// x, or -x where the sign of `sign` is set.
POLYGRAD_INLINE float times_sign_of(float x, float sign) {
  return from_bits(to_bits(x) ^ (to_bits(sign) & 0x80000000u));
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

// Bounds by comparing bits, for which there is a vector instruction that needs no mask. Where the sign of a NaN is set,
// max(x, 0) and max(x, limit < 0) are the bound; min(x >= 0, limit) is the bound for any NaN.
POLYGRAD_INLINE float positive_part(float x) {
  const std::int32_t bits = static_cast<std::int32_t>(to_bits(x));
  return from_bits(static_cast<std::uint32_t>(bits < 0 ? 0 : bits));
}
POLYGRAD_INLINE float at_least_bits(float x, float limit) {
  return from_bits(to_bits(x) < to_bits(limit) ? to_bits(x) : to_bits(limit));
}
POLYGRAD_INLINE float at_most_bits(float x, float limit) {
  return from_bits(to_bits(x) < to_bits(limit) ? to_bits(x) : to_bits(limit));
}

// x = n·ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^22.
struct ExpArgument {
  std::uint32_t shifted;  // its low bits are n's
  float n, r;
};
POLYGRAD_INLINE ExpArgument reduce_exp(float x) {
  const float kMagic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, kept in the low bits
  const float shifted = fma(x, 1.44269504f, kMagic);
  const float n = shifted - kMagic;
  return {to_bits(shifted), n, fma(n, -kLn2Low, fma(n, -kLn2High, x))};
}
// (e^r - 1 - r) / r² for |r| <= ln 2 / 2.
POLYGRAD_INLINE float exp_tail(float r) {
  float q = fma(0.001381314416f, r, 0.008369418807f);
  q = fma(q, r, 0.0416684568f);
  q = fma(q, r, 0.1666651479f);
  return fma(q, r, 0.4999999305f);
}
// e^r for |r| <= ln 2 / 2.
POLYGRAD_INLINE float exp_small(float r) { return fma(fma(exp_tail(r), r, 1.0f), r, 1.0f); }
// e^x - 1 for -30 <= x < 88.72.
POLYGRAD_INLINE float expm1_bounded(float x) {
  const ExpArgument a = reduce_exp(x);
  const float half = from_bits((a.shifted << 23) + 0x3f000000u);  // 2^(n - 1)
  return 2.0f * fma(half, fma(a.r * a.r, exp_tail(a.r), a.r), half - 0.5f);
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
  // Below -104 the result is 0 all the same. The scale 2^n is applied in two halves, so that each is a normal number
  // while the result becomes denormal as it should.
  const detail::ExpArgument a = detail::reduce_exp(detail::at_least_bits(x, -104.0f));
  const std::uint32_t half = (a.shifted << 22) & 0xff800000u, rest = (a.shifted << 23) - half;
  const float value = from_bits(to_bits(detail::exp_small(a.r)) + half) * from_bits(rest + 0x3f800000u);
  return x <= 88.7228394f ? value : x + from_bits(0x7f800000u);  // infinity, or NaN
}
POLYGRAD_INLINE double exp(double x) { return ::exp(x); }

// e^x - 1, exact where e^x is close to 1.
POLYGRAD_INLINE float expm1(float x) {
  const float value = detail::expm1_bounded(detail::at_least_bits(x, -30.0f));
  return x <= 88.7228394f ? value : x + from_bits(0x7f800000u);
}
POLYGRAD_INLINE double expm1(double x) { return ::expm1(x); }

namespace detail {

// log(2^more · x) for a normal positive x.
POLYGRAD_INLINE float log_normal(float x, float more) {
  const LogArgument a = reduce_log(x);
  const float exponent = a.exponent + more, f = a.f, square = f * f;
  float tail = fma(exponent, kLn2Low, square * f * log_tail(f, FusedMultiplyAdd{}));
  tail = fma(-0.5f, square, tail);
  return fma(exponent, kLn2High, f + tail);
}

}  // namespace detail

// -infinity at 0, NaN below.
POLYGRAD_INLINE float log(float x) {
  const float kInfinity = from_bits(0x7f800000u);
  const bool denormal = x < 1.17549435e-38f;
  const float value = detail::log_normal(denormal ? x * 33554432.0f : x, denormal ? -25.0f : 0.0f);  // 2^25
  const float special = x == 0.0f ? -kInfinity : (x < 0.0f ? from_bits(0x7fc00000u) : x);
  return (x > 0.0f) & (x < kInfinity) ? value : special;
}
POLYGRAD_INLINE double log(double x) { return ::log(x); }

// log(1 + x) for x >= 0, exact for small x: what rounding 1 + x lost is put back to first order.
POLYGRAD_INLINE float log1p(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);
  const float correction = x < 1.0f ? lost / sum : 0.0f;
  return sum < from_bits(0x7f800000u) ? detail::log_normal(sum, 0.0f) + correction : sum;
}
POLYGRAD_INLINE double log1p(double x) { return ::log1p(x); }

// --- sigmoids -------------------------------------------------------------------------------------------------------

POLYGRAD_INLINE float tanh(float x) {
  const float t = detail::expm1_bounded(2.0f * at_most(abs(x), 10.0f));
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

namespace detail {

// Beyond this many standard deviations what is left counts as nothing.
inline constexpr float kNormalEnd = 6.0f;
// 1 - Φ(u), the probability that a standard normal number exceeds u >= 0; for u <= kNormalEnd. It is the eighth power
// of a polynomial: that root falls from 0.92 to 0.08 only, as e^(-u²/16) does, and takes half the terms that Φ itself
// would. The fit weighs its error by max(u, 1), as GELU does, and is off by 2.4e-8.
POLYGRAD_INLINE float normal_tail(float u) {
  float p = fma(-2.974726101e-07f, u, 7.468094282e-06f);
  p = fma(p, u, -5.997035987e-05f);
  p = fma(p, u, 3.272983668e-05f);
  p = fma(p, u, 0.001508164336f);
  p = fma(p, u, -0.0006765242433f);
  p = fma(p, u, -0.03192544729f);
  p = fma(p, u, -0.0914580375f);
  p = fma(p, u, 0.9170040488f);
  p *= p;
  p *= p;
  return p * p;
}
// φ(u) / (1 - Φ(u)) for 0 <= u <= kNormalEnd, where φ is the density: nearly a straight line. The fit weighs its error
// by what that adds to u·φ(u): 5.8e-8.
POLYGRAD_INLINE float normal_hazard(float u) {
  float q = fma(1.12617081e-05f, u, -0.0001439268817f);
  q = fma(q, u, 0.0005795796169f);
  q = fma(q, u, 0.0008758277982f);
  q = fma(q, u, -0.02002006024f);
  q = fma(q, u, 0.1094052643f);
  q = fma(q, u, 0.636536777f);
  return fma(q, u, 0.7978902459f);
}

}  // namespace detail

// Φ(x): the probability that a standard normal number is below x.
POLYGRAD_INLINE float normal_cdf(float x) {
  const float u = abs(x);
  const float tail = u > detail::kNormalEnd ? 0.0f : detail::normal_tail(u);
  return times_sign_of(0.5f - tail, x) + 0.5f;
}
POLYGRAD_INLINE double normal_cdf(double x) { return 0.5 * ::erfc(x * -0.70710678118654752440); }
// Its derivative, e^(-x²/2) / sqrt(2π).
POLYGRAD_INLINE float normal_density(float x) { return 0.398942280f * exp(-0.5f * x * x); }
POLYGRAD_INLINE double normal_density(double x) { return 0.39894228040143267794 * exp(-0.5 * x * x); }

template <class T>
struct ValueAndSlope {
  T value, slope;
};

// x·Φ(x) and its derivative Φ(x) + x·φ(x). With u = |x| and Q = u·(1 - Φ(u)) the value is max(x, 0) - Q, and the
// derivative, less 1/2, odd in x: Φ(u) - 1/2 + u·φ(u).
POLYGRAD_INLINE ValueAndSlope<float> gelu_and_slope(float x) {
  const float u = abs(x), near = detail::at_most_bits(u, detail::kNormalEnd);
  const float tail = u > detail::kNormalEnd ? 0.0f : detail::normal_tail(u);  // of NaN: NaN
  const float product = near * tail;
  const float centre = fma(product, detail::normal_hazard(near), 0.5f - tail);
  return {detail::positive_part(x) - product, times_sign_of(centre, x) + 0.5f};
}
POLYGRAD_INLINE float gelu(float x) { return gelu_and_slope(x).value; }
POLYGRAD_INLINE ValueAndSlope<double> gelu_and_slope(double x) {
  // The argument is bounded where the results have long become constant, so that no 0·∞ arises.
  const double from_below = at_least(x, -40.0), bounded = at_most(from_below, 40.0), cdf = normal_cdf(from_below);
  return {from_below * cdf, fma(bounded, normal_density(bounded), cdf)};
}
POLYGRAD_INLINE double gelu(double x) {
  const double bounded = at_least(x, -40.0);
  return bounded * normal_cdf(bounded);
}

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
