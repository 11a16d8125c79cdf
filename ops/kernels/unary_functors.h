// The elementwise maps, each one small struct: its value, its derivative, and what the derivative reads.
//
// Where this stands: the one text of every map's formula, for float and double, for the CPU and for CUDA. Plain
// branch-free code over engine/math.h, which the compiler turns into vector instructions.
// To add a map: write its struct, name it in `All` at the end, and see ops/unary.h.
// Read next: unary.h (the kernel table), ops/cpu/unary.cpp (the loops).
#pragma once

#include <type_traits>

#include "engine/math.h"

namespace polygrad::functors {

// What derivative(x, y) reads: that tensor is saved for the backward; the other argument is 0 then.
enum class Reads { nothing, x, y };

// g·f'. A map whose derivative can overflow where this product doesn't says itself how to form it.
template <class F, class T>
POLYGRAD_INLINE T gradient(F f, T g, T x, T y) {
  if constexpr (requires { f.gradient(g, x, y); }) {
    return f.gradient(g, x, y);
  } else {
    return g * f.derivative(x, y);
  }
}

struct Neg {
  static constexpr const char* kName = "neg";
  static constexpr Reads kReads = Reads::nothing;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return -x;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T) {
    return T(-1);
  }
};

struct Abs {
  static constexpr const char* kName = "abs";
  static constexpr Reads kReads = Reads::x;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::abs(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return x > T(0) ? T(1) : (x < T(0) ? T(-1) : x);  // x itself: 0 or NaN
  }
};

struct Exp {
  static constexpr const char* kName = "exp";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::exp(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return y;
  }
};

// e^-x
struct ExpNeg {
  static constexpr const char* kName = "exp_neg";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::exp(-x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return -y;
  }
};

struct Log {
  static constexpr const char* kName = "log";
  static constexpr Reads kReads = Reads::x;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::log(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return T(1) / x;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient(T g, T x, T) {
    return g / x;
  }
};

struct Sqrt {
  static constexpr const char* kName = "sqrt";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::sqrt(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return T(0.5) / y;
  }
};

struct Reciprocal {
  static constexpr const char* kName = "reciprocal";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return T(1) / x;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return -y * y;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient(T g, T, T y) {
    return -(g * y) * y;
  }
};

struct Square {
  static constexpr const char* kName = "square";
  static constexpr Reads kReads = Reads::x;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return x * x;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return T(2) * x;
  }
};

struct Tanh {
  static constexpr const char* kName = "tanh";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::tanh(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return T(1) - y * y;
  }
};

struct Sigmoid {
  static constexpr const char* kName = "sigmoid";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::sigmoid(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return y * (T(1) - y);
  }
};

struct Relu {
  static constexpr const char* kName = "relu";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::at_least(x, T(0));
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return y > T(0) ? T(1) : y;  // y itself: 0 or NaN
  }
};

struct Elu {
  static constexpr const char* kName = "elu";
  static constexpr Reads kReads = Reads::y;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    const T negative = math::expm1(math::at_most(x, T(0)));
    return x > T(0) ? x : negative;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T y) {
    return y > T(0) ? T(1) : y + T(1);
  }
};

// x·Φ(x), the exact form.
struct Gelu {
  static constexpr const char* kName = "gelu";
  static constexpr Reads kReads = Reads::x;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::gelu(x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return math::gelu_and_slope(x).slope;
  }
  // Both, for little more than the derivative alone.
  template <class T>
  POLYGRAD_INLINE static math::ValueAndSlope<T> value_and_slope(T x) {
    return math::gelu_and_slope(x);
  }
};

// In the next two the argument is bounded where the result has long become constant, so that no 0·∞ arises.

// x/2·(1 + tanh(k·(x + a·x³))), k = √(2/π), a = 0.044715.
struct GeluTanh {
  static constexpr const char* kName = "gelu_tanh";
  static constexpr Reads kReads = Reads::x;
  static constexpr double kScale = 0.79788456080286535588;
  static constexpr double kCubic = 0.044715;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    const T bounded = math::at_least(x, T(-40));
    const T inner = T(kScale) * bounded * math::fma(T(kCubic) * bounded, bounded, T(1));
    return T(0.5) * bounded * (T(1) + math::tanh(inner));
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    const T bounded = math::at_most(math::at_least(x, T(-40)), T(40));
    const T square = bounded * bounded;
    const T t = math::tanh(T(kScale) * bounded * math::fma(T(kCubic), square, T(1)));
    const T slope = T(kScale) * math::fma(T(3 * kCubic), square, T(1));  // of the argument of tanh
    return T(0.5) * (T(1) + t + bounded * (T(1) - t * t) * slope);
  }
};

// x·sigmoid(x)
struct Silu {
  static constexpr const char* kName = "silu";
  static constexpr Reads kReads = Reads::x;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    const T bounded = math::at_least(x, T(-1000));
    return bounded * math::sigmoid(bounded);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    const T bounded = math::at_most(math::at_least(x, T(-1000)), T(1000));
    const T s = math::sigmoid(bounded);
    return s * math::fma(bounded, T(1) - s, T(1));
  }
};

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)
struct Softplus {
  static constexpr const char* kName = "softplus";
  static constexpr Reads kReads = Reads::x;
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return math::at_least(x, T(0)) + math::log1p(math::exp(-math::abs(x)));
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return math::sigmoid(x);
  }
};

// x^n, the one map with a parameter, so the one with state.
struct Pow {
  int n;
  template <class T>
  POLYGRAD_INLINE T value(T x) const {
    return math::pow_int(x, n);
  }
  template <class T>
  POLYGRAD_INLINE T derivative(T x, T) const {
    return n == 0 ? T(0) : T(n) * math::pow_int(x, n - 1);
  }
};
// Powers that have no loop, so that theirs become vector instructions.
struct Identity {
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return x;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T, T) {
    return T(1);
  }
};
struct Inverse {
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return T(1) / x;
  }
  template <class T>
  POLYGRAD_INLINE static T gradient(T g, T x, T) {
    return -(g / x) / x;
  }
};
struct Fourth {
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return (x * x) * (x * x);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return T(4) * (x * x * x);
  }
};
struct Cube {
  template <class T>
  POLYGRAD_INLINE static T value(T x) {
    return x * x * x;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T x, T) {
    return T(3) * x * x;
  }
};

template <class... Functors>
struct List {
  static constexpr int kSize = sizeof...(Functors);
};
// Every map without a parameter; the place in this list is its place in the kernel table.
using All = List<Neg, Abs, Exp, ExpNeg, Log, Sqrt, Reciprocal, Square, Tanh, Sigmoid, Relu, Elu, Gelu, GeluTanh, Silu,
                 Softplus>;

template <class Wanted, class... Functors>
constexpr int place_in(List<Functors...>) {
  constexpr bool kMatches[] = {std::is_same_v<Wanted, Functors>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Functors)); ++i) {
    if (kMatches[i]) return i;
  }
  return -1;
}
template <class Functor>
inline constexpr int kPlace = place_in<Functor>(All{});

}  // namespace polygrad::functors
