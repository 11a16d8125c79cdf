#include "engine/dtype.h"

#include "engine/bfloat16.h"
#include "engine/float16.h"

namespace polygrad {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i64:
      return "i64";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::boolean:
      return "bool";
  }
  return "?";
}

std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 1;
}

bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
}

float to_float(BFloat16 value) { return widen(value); }
BFloat16 to_bfloat16(float value) { return round_to_bfloat16(value); }

float to_float(Float16 value) { return widen(value); }
Float16 to_float16(float value) { return round_to_float16(value); }

}  // namespace polygrad
