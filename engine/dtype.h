// Element types. Arithmetic on the CPU is in f32 and f64; bf16 and f16 are storage and casts.
//
// Read next: device.h, tensor.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace polygrad {

enum class DType : std::uint8_t { f32, f64, bf16, f16, i64, i32, u8, boolean };

// "f32", "bf16", "bool", ...
const char* to_string(DType dtype);
std::size_t dtype_size(DType dtype);
bool is_floating(DType dtype);

// 16-bit storage types: bits only. Convert with the free functions below (round to nearest even).
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

float to_float(BFloat16 value);
float to_float(Float16 value);
BFloat16 to_bfloat16(float value);  // NaN stays NaN, too large becomes infinity
Float16 to_float16(float value);

// The DType of a C++ element type.
template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<bool> {
  static constexpr DType value = DType::boolean;
};

}  // namespace polygrad
