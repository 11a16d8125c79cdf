// Element types, and the conversions between f32 and its 16-bit relatives.
#include "engine/dtype.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "engine/tensor.h"

using namespace polygrad;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

std::uint16_t bf16(float value) { return to_bfloat16(value).bits; }
std::uint16_t f16(float value) { return to_float16(value).bits; }

// Rounding by search: the nearest representable value, the even one of two. The conversions must agree with it.
template <class Half>
std::uint16_t nearest(float value, std::uint16_t infinity_bits) {
  const bool negative = std::signbit(value);
  const double magnitude = std::abs(static_cast<double>(value));
  std::uint16_t low = 0, high = infinity_bits;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<double>(to_float(Half{middle})) <= magnitude ? low : high) = middle;
  }
  // Beyond the largest finite value the next step counts as the one that follows it.
  const double below = to_float(Half{low});
  const double step = below - static_cast<double>(to_float(Half{static_cast<std::uint16_t>(low - (low > 0 ? 1 : 0))}));
  const double above = high == infinity_bits ? below + step : static_cast<double>(to_float(Half{high}));
  const double down = magnitude - below, up = above - magnitude;
  const std::uint16_t chosen = down < up || (down == up && low % 2 == 0) ? low : high;
  return static_cast<std::uint16_t>(chosen | (negative ? 0x8000 : 0));
}

}  // namespace

TEST_CASE("names and sizes") {
  CHECK(std::string(to_string(DType::bf16)) == "bf16");
  CHECK(std::string(to_string(DType::boolean)) == "bool");
  CHECK(dtype_size(DType::f64) == 8);
  CHECK(dtype_size(DType::f16) == 2);
  CHECK(dtype_size(DType::boolean) == 1);
  CHECK(is_floating(DType::bf16));
  CHECK_FALSE(is_floating(DType::i64));
  CHECK_FALSE(is_floating(DType::boolean));
}

TEST_CASE("bf16") {
  CHECK(to_float(BFloat16{0x3F80}) == 1.0f);
  CHECK(bf16(1.0f) == 0x3F80);
  CHECK(bf16(-0.0f) == 0x8000);
  CHECK(bf16(1.0f + 0x1p-8f) == 0x3F80);             // a tie goes to the even one, down
  CHECK(bf16(1.0f + 0x3p-8f) == 0x3F82);             // and up
  CHECK(bf16(1.0f + 0x1p-8f + 0x1p-20f) == 0x3F81);  // above the tie
  CHECK(bf16(kInfinity) == 0x7F80);
  CHECK(bf16(std::numeric_limits<float>::max()) == 0x7F80);  // rounds to infinity
  CHECK(bf16(std::numeric_limits<float>::denorm_min()) == 0);
  CHECK(bf16(0x1p-133f) == 0x0001);  // the smallest denormal
  CHECK(std::isnan(to_float(to_bfloat16(kNaN))));
  CHECK(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7F800001u)))));  // its payload lies below the cut
}

TEST_CASE("f16") {
  CHECK(to_float(Float16{0x3C00}) == 1.0f);
  CHECK(f16(1.0f) == 0x3C00);
  CHECK(f16(-2.0f) == 0xC000);
  CHECK(f16(65504.0f) == 0x7BFF);
  CHECK(f16(65519.996f) == 0x7BFF);
  CHECK(f16(65520.0f) == 0x7C00);
  CHECK(f16(kInfinity) == 0x7C00);
  CHECK(f16(-kInfinity) == 0xFC00);
  CHECK(f16(0x1p-14f) == 0x0400);  // the smallest normal
  CHECK(f16(0x1p-24f) == 0x0001);  // the smallest denormal
  CHECK(f16(0x1p-25f) == 0x0000);  // a tie with zero, which is even
  CHECK(f16(0x1.8p-24f) == 0x0002);
  CHECK(f16(0x1.000002p-25f) == 0x0001);
  CHECK(to_float(Float16{0x0001}) == 0x1p-24f);
  CHECK(to_float(Float16{0x03FF}) == 1023 * 0x1p-24f);
  CHECK(std::isnan(to_float(to_float16(kNaN))));
  CHECK(std::isnan(to_float(to_float16(std::bit_cast<float>(0x7F800001u)))));
}

TEST_CASE("every 16-bit value survives f32") {
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float a = to_float(BFloat16{bits}), b = to_float(Float16{bits});
    if (std::isnan(a) ? !std::isnan(to_float(to_bfloat16(a))) : to_bfloat16(a).bits != bits) ++wrong;
    if (std::isnan(b) ? !std::isnan(to_float(to_float16(b))) : to_float16(b).bits != bits) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("rounding is to the nearest, ties to even, over the whole range") {
  int wrong = 0;
  for (std::uint64_t bits = 0; bits < 0x7F800000u; bits += 65521 * 3) {
    for (const std::uint32_t nudge : {0u, 1u, 0x1000u, 0x8000u}) {
      const float value = std::bit_cast<float>((static_cast<std::uint32_t>(bits) & ~0xFFFFu) | nudge);
      for (const float signed_value : {value, -value}) {
        if (f16(signed_value) != nearest<Float16>(signed_value, 0x7C00)) ++wrong;
        if (bf16(signed_value) != nearest<BFloat16>(signed_value, 0x7F80)) ++wrong;
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("casts between tensors") {
  const Tensor x = Tensor::from_vector(std::vector<double>{-2.9, -0.5, 0, 0.99, 2.9, 300});
  CHECK(x.to(DType::i64).to_vector<std::int64_t>() == std::vector<std::int64_t>{-2, 0, 0, 0, 2, 300});
  CHECK(x.to(DType::i32).to_vector<std::int32_t>() == std::vector<std::int32_t>{-2, 0, 0, 0, 2, 300});
  CHECK(x.to(DType::boolean).to_vector<bool>() == std::vector<bool>{true, true, false, true, true, true});
  CHECK(x.to(DType::bf16).to(DType::f32).to_vector<float>()[5] == 300);
  const Tensor ids = Tensor::from_vector(std::vector<std::int64_t>{16777217, -1});
  CHECK(ids.to(DType::f64).to_vector<double>() == std::vector<double>{16777217, -1});
  const Tensor odd = Tensor::from_vector(std::vector<float>{kNaN, kInfinity, -kInfinity});
  CHECK(
      odd.to(DType::i32).to_vector<std::int32_t>() ==
      std::vector<std::int32_t>{0, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()});
}
