// Every elementwise φ of attention, one small struct each, and the list that makes them available everywhere.
//
// Where this stands: below the kernels (CPU and CUDA), above engine/math.h. The front takes the names from here, the
// kernels the loops, the norm probes the derivative, the tests the list itself.
//
// To add one: write a struct with a name, value(s) and derivative(s), branch-free so that a loop over it becomes vector
// instructions, and append it to ActivationList. Nothing else of the library changes. Then give the naive twin its line
// in tests/reference/attention.cpp; a test that walks the list fails until it has one.
// Read next: ops/cpu/attention_block.cpp (the loops over a block of scores), docs/attention.md.
#pragma once

#include <cstdint>

#include "engine/math.h"

namespace polygrad::attention_activation {

// s^P. The paper's polynomials; P = 1 makes attention linear in the number of tokens.
template <int P>
struct Power {
  static_assert(1 <= P && P <= 9);
  static constexpr const char* kNames[] = {"", "x", "x2", "x3", "x^4", "x^5", "x^6", "x^7", "x^8", "x^9"};
  static constexpr const char* kName = kNames[P];
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    T result = s;
    for (int i = 1; i < P; ++i) result *= s;
    return result;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    T result = P;
    for (int i = 1; i < P; ++i) result *= s;
    return result;
  }
};

struct Relu {
  static constexpr const char* kName = "relu";
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    return math::at_least(s, T(0));
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    return s > T(0) ? T(1) : math::at_least(s, T(0));
  }
};

// s, and e^s - 1 below 0.
struct Elu {
  static constexpr const char* kName = "elu";
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    const T negative = math::expm1(math::at_most(s, T(0)));
    return s > T(0) ? s : negative;
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    return math::exp(math::at_most(s, T(0)));
  }
};

// s times the probability that a standard normal number is below s: the erf form. The argument is bounded where the
// result has long become constant, so that a bias of -infinity gives 0 and not 0·∞.
struct Gelu {
  static constexpr const char* kName = "gelu";
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    const T bounded = math::at_least(s, T(-40));
    return bounded * math::normal_cdf(bounded);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    const T bounded = math::at_most(math::at_least(s, T(-40)), T(40));
    return math::fma(bounded, math::normal_density(bounded), math::normal_cdf(bounded));
  }
};

struct Tanh {
  static constexpr const char* kName = "tanh";
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    return math::tanh(s);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    const T t = math::tanh(s);
    return (T(1) - t) * (T(1) + t);
  }
};

struct Exp {
  static constexpr const char* kName = "exp";
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    return math::exp(s);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    return math::exp(s);
  }
};

// The paper's Exp: e^(-s).
struct ExpNeg {
  static constexpr const char* kName = "exp_neg";
  template <class T>
  POLYGRAD_INLINE static T value(T s) {
    return math::exp(-s);
  }
  template <class T>
  POLYGRAD_INLINE static T derivative(T s) {
    return -math::exp(-s);
  }
};

// --- the list -------------------------------------------------------------------------------------------------------

template <class... Phi>
struct List {
  static constexpr std::int32_t kCount = sizeof...(Phi);
  static constexpr const char* kNames[] = {Phi::kName...};
  // Makes a table with one entry for each φ: F<Phi>::kEntry.
  template <class Entry, template <class> class F>
  struct Table {
    static constexpr Entry kEntries[] = {F<Phi>::kEntry...};
  };
};

// An Activation's id is its position here. The nine powers stand first: φ = s^p has id p - 1.
using ActivationList = List<Power<1>, Power<2>, Power<3>, Power<4>, Power<5>, Power<6>, Power<7>, Power<8>, Power<9>,
                            Relu, Elu, Gelu, Tanh, Exp, ExpNeg>;

inline constexpr std::int32_t kSoftmax = -1;
inline constexpr std::int32_t kIdentity = 0;  // φ = x
inline constexpr std::int32_t kPowers = 9;

}  // namespace polygrad::attention_activation
