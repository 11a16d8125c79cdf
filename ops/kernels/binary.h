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

// Each arithmetic map: value(a, b); its derivatives by a and by b; and which of a and b each derivative reads, so that
// only that is saved.
namespace functors {

struct Add {
  static constexpr const char* kName = "add";
  static constexpr bool kReads[2][2] = {{false, false}, {false, false}};
  template <class T>
  POLYGRAD_INLINE static T value(T a, T b) {
    return a + b;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_a(T, T) {
    return T(1);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_b(T, T) {
    return T(1);
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
  POLYGRAD_INLINE static T derivative_a(T, T) {
    return T(1);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_b(T, T) {
    return T(-1);
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
  POLYGRAD_INLINE static T derivative_a(T, T b) {
    return b;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_b(T a, T) {
    return a;
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
  POLYGRAD_INLINE static T derivative_a(T, T b) {
    return T(1) / b;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_b(T a, T b) {
    return -(a / b) / b;  // b² could overflow
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
  POLYGRAD_INLINE static T derivative_a(T a, T b) {
    return a > b ? T(1) : (a == b ? T(0.5) : T(0));
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_b(T a, T b) {
    return derivative_a(b, a);
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
  POLYGRAD_INLINE static T derivative_a(T a, T b) {
    return a < b ? T(1) : (a == b ? T(0.5) : T(0));
  }
  template <class T>
  POLYGRAD_INLINE static T derivative_b(T a, T b) {
    return derivative_a(b, a);
  }
};

}  // namespace functors

enum class Comparison { eq, ne, lt, le, gt, ge };

struct BinaryKernels {
  // out = f(a, b)
  using Forward = void (*)(Workspace&, const TensorRef& a, const TensorRef& b, const TensorRef& out);
  // out = g·(derivative by one operand), of g's shape: not yet summed over repeated dimensions. g is contiguous. An
  // operand that the derivative doesn't read may be any tensor of a fitting shape.
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
