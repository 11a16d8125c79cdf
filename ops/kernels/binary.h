// The elementwise maps of two tensors: their formulas, and the kernels' signatures.
//
// Where this stands: between ops/binary.cpp (checks, gradients) and ops/cpu/binary.cpp. a and b have any strides and
// shapes that broadcast to out's; out is contiguous. All of one dtype, but for comparisons' bool result.
#pragma once

#include <type_traits>

#include "engine/math.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

// Each arithmetic map: value(a, b); the gradients of a and of b for g, the gradient of the value; and which of a and b
// each gradient reads, so that only that is saved.
namespace functors {

struct Add {
  static constexpr const char* kName = "add";
  static constexpr bool kReads[2][2] = {{false, false}, {false, false}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return a + b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_a(T g, T, T) {
    return g;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_b(T g, T, T) {
    return g;
  }
};

struct Sub {
  static constexpr const char* kName = "sub";
  static constexpr bool kReads[2][2] = {{false, false}, {false, false}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return a - b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_a(T g, T, T) {
    return g;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_b(T g, T, T) {
    return -g;
  }
};

struct Mul {
  static constexpr const char* kName = "mul";
  static constexpr bool kReads[2][2] = {{false, true}, {true, false}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return a * b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_a(T g, T, T b) {
    return g * b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_b(T g, T a, T) {
    return g * a;
  }
};

struct Div {
  static constexpr const char* kName = "div";
  static constexpr bool kReads[2][2] = {{false, true}, {true, true}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return a / b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_a(T g, T, T b) {
    return g / b;  // 1/b could overflow
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_b(T g, T a, T b) {
    // In f64, where no part of an f32 result overflows; nor does b² in f64 itself.
    const double upstream = static_cast<double>(g), divisor = static_cast<double>(b);
    return static_cast<T>(-(upstream / divisor) * (static_cast<double>(a) / divisor));
  }
};

struct Maximum {
  static constexpr const char* kName = "maximum";
  static constexpr bool kReads[2][2] = {{true, true}, {true, true}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_a(T g, T a, T b) {
    return a > b ? g : a < b ? T(0) : a == b ? T(0.5) * g : a + b;  // the last is NaN
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_b(T g, T a, T b) {
    return gradient_a(g, b, a);
  }
};

struct Minimum {
  static constexpr const char* kName = "minimum";
  static constexpr bool kReads[2][2] = {{true, true}, {true, true}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_a(T g, T a, T b) {
    return a < b ? g : a > b ? T(0) : a == b ? T(0.5) * g : a + b;  // the last is NaN
  }
  template <class T>
  POLYGRAD_INLINE static T gradient_b(T g, T a, T b) {
    return gradient_a(g, b, a);
  }
};

}  // namespace functors

enum class Comparison { eq, ne, lt, le, gt, ge };

struct BinaryKernels {
  // out = f(a, b)
  using Forward = void (*)(Workspace&, const TensorRef& a, const TensorRef& b, const TensorRef& out);
  // out = the gradient of one operand, of g's shape: not yet summed over repeated dimensions. g is contiguous. An
  // operand that the gradient doesn't read may be any tensor of a fitting shape.
  using Backward = void (*)(Workspace&, const TensorRef& g, const TensorRef& a, const TensorRef& b,
                            const TensorRef& out);
  struct Arithmetic {
    Forward forward;
    Backward backward[2];  // by a, by b
  };
  Arithmetic add, sub, mul, div, maximum, minimum;
  // out is bool; a and b are f32, f64, i64, i32, u8 or bool.
  void (*compare)(Workspace&, Comparison, const TensorRef& a, const TensorRef& b, const TensorRef& out);
};

extern const BinaryKernels cpu_binary_kernels;
const BinaryKernels& cuda_binary_kernels();
inline const BinaryKernels& binary_kernels(DeviceType device) {
  return select_kernels(device, cpu_binary_kernels, cuda_binary_kernels);
}

}  // namespace polygrad
