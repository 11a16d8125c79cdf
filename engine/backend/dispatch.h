// From a dtype to its C++ type: what the engine's kernels of both devices begin with. Internal: not installed.
#pragma once

#include <cstdint>

#include "engine/bfloat16.h"
#include "engine/dtype.h"
#include "engine/float16.h"

namespace polygrad {

// f(T()) for every dtype's T.
template <class F>
void dispatch(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(BFloat16{});
    case DType::f16:
      return f(Float16{});
    case DType::i64:
      return f(std::int64_t{});
    case DType::i32:
      return f(std::int32_t{});
    case DType::u8:
      return f(std::uint8_t{});
    case DType::boolean:
      return f(bool{});
  }
}

}  // namespace polygrad
