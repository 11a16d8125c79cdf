// Sums and maxima of a row, with the instruction set's widest vectors and in an order of their own.
//
// A compiler may not reorder the additions of a plain loop, so it cannot vectorise one. Here the order is fixed in the
// text: element i is added to lane i mod 16, and the lanes are added pairwise at the end. So the bits depend neither on
// the width of the machine's vectors nor on the number of threads. Sums are f64, also of f32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/math.h"

namespace polygrad::lanes {

// Where the machine's vectors are shorter, GCC remarks that a function would return these in another way. All are
// inline.
#pragma GCC diagnostic ignored "-Wpsabi"

// --- vectors of 64 bytes --------------------------------------------------------------------------------------------

template <class T>
struct Vector64;
template <>
struct Vector64<float> {
  using type = float __attribute__((vector_size(64)));
  using index = std::int32_t __attribute__((vector_size(64)));
  static constexpr index kIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
};
template <>
struct Vector64<double> {
  using type = double __attribute__((vector_size(64)));
  using index = std::int64_t __attribute__((vector_size(64)));
  static constexpr index kIndex = {0, 1, 2, 3, 4, 5, 6, 7};
};
template <class T>
using Vector = typename Vector64<T>::type;
template <class T>
inline constexpr std::int64_t kWidth = 64 / sizeof(T);

template <class T>
POLYGRAD_INLINE Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// a·b + c, rounded once where the machine can.
template <class V>
POLYGRAD_INLINE V fma(const V& a, const V& b, const V& c) {
  using T = std::remove_cvref_t<decltype(a[0])>;
  T x[kWidth<T>], y[kWidth<T>], z[kWidth<T>];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  std::memcpy(z, &c, sizeof z);
  for (std::int64_t i = 0; i < kWidth<T>; ++i) z[i] = math::fma(x[i], y[i], z[i]);
  return load(static_cast<const T*>(z));
}

// How a row is read: a whole vector, or its last few elements and zeros.
struct Whole {
  template <class T>
  POLYGRAD_INLINE Vector<T> operator()(const T* p) const {
    return load(p);
  }
  template <class T>
  POLYGRAD_INLINE Vector<T> keep(const Vector<T>& v) const {
    return v;
  }
};
struct Rest {
  std::int64_t count;
  template <class T>
  POLYGRAD_INLINE Vector<T> operator()(const T* p) const {
    T part[kWidth<T>] = {};
    for (std::int64_t i = 0; i < count; ++i) part[i] = p[i];
    return load(static_cast<const T*>(part));
  }
  template <class T>
  POLYGRAD_INLINE Vector<T> keep(const Vector<T>& v) const {
    using Index = typename Vector64<T>::index;
    using Number = std::remove_cvref_t<decltype(Index{}[0])>;
    return Vector64<T>::kIndex < (Index{} + static_cast<Number>(count)) ? v : Vector<T>{};
  }
};

// --- sums -----------------------------------------------------------------------------------------------------------

// Sixteen running sums in f64, in vectors that a conversion from f32 fills with one instruction.
struct Sum {
  using Double4 = double __attribute__((vector_size(32)));
  using Double2 = double __attribute__((vector_size(16)));
  Double4 part[4] = {};

  POLYGRAD_INLINE static Double4 load4(const float* p) {  // a loop: GCC 12 converts vectors by halves
    double v[4];
    for (int i = 0; i < 4; ++i) v[i] = static_cast<double>(p[i]);
    return load4(static_cast<const double*>(v));
  }
  POLYGRAD_INLINE static Double4 load4(const double* p) {
    Double4 v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <class T>
  POLYGRAD_INLINE void add16(const T* p) {
    for (int k = 0; k < 4; ++k) part[k] += load4(p + 4 * k);
  }
  POLYGRAD_INLINE static double total(const Double4& four) {
    Double2 half[2];
    std::memcpy(half, &four, sizeof half);
    const Double2 two = half[0] + half[1];
    return two[0] + two[1];
  }
  POLYGRAD_INLINE double total() const { return total((part[0] + part[2]) + (part[1] + part[3])); }
};

// A vector's four quarters, or two halves, added up.
POLYGRAD_INLINE Sum::Double4 fold4(const Vector<float>& v) {
  using Float8 = float __attribute__((vector_size(32)));
  using Float4 = float __attribute__((vector_size(16)));
  Float8 halves[2];
  std::memcpy(halves, &v, sizeof halves);
  const Float8 half = halves[0] + halves[1];
  Float4 quarters[2];
  std::memcpy(quarters, &half, sizeof quarters);
  const Float4 quarter = quarters[0] + quarters[1];
  float four[4];
  std::memcpy(four, &quarter, sizeof four);
  return Sum::load4(static_cast<const float*>(four));
}
POLYGRAD_INLINE Sum::Double4 fold4(const Vector<double>& v) {
  Sum::Double4 halves[2];
  std::memcpy(halves, &v, sizeof halves);
  return halves[0] + halves[1];
}

// Σ value(i), in f64: for terms that are formed one by one.
template <class Value>
POLYGRAD_INLINE double sum_of(std::int64_t n, const Value& value) {
  Sum lanes;
  for (std::int64_t i = 0; i < n; i += 16) {
    double next[16];
    for (std::int64_t lane = 0; lane < 16; ++lane) next[lane] = i + lane < n ? value(i + lane) : 0.0;
    lanes.add16(next);
  }
  return lanes.total();
}

// Σ x[i]
template <class T>
POLYGRAD_INLINE double sum(const T* x, std::int64_t n) {
  Sum lanes;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) lanes.add16(x + i);
  if (i < n) {
    T rest[16] = {};
    for (std::int64_t lane = 0; i + lane < n; ++lane) rest[lane] = x[i + lane];
    lanes.add16(static_cast<const T*>(rest));
  }
  return lanes.total();
}

// Several sums along rows of T: add(i, read, sums) adds what belongs to the elements from i on, which it reads as
// vectors by read(pointer), to vectors of running sums. A lane adds at most kRun times in T, then the sets of lanes and
// their quarters are added to each other; the rest is f64.
template <class T, int kSums, class Add>
POLYGRAD_INLINE void sum_rows(std::int64_t n, const Add& add, double (&sums)[kSums]) {
  constexpr std::int64_t kRun = 8, kStep = 4 * kWidth<T>, kBlock = kRun * kStep;
  Sum::Double4 total[kSums] = {};
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t end = first + kBlock < n ? first + kBlock : n;
    Vector<T> a[kSums] = {}, b[kSums] = {}, c[kSums] = {}, d[kSums] = {};  // by names, so that they stay in registers
    std::int64_t i = first;
    for (; i + kStep <= end; i += kStep) {
      add(i, Whole(), a);
      add(i + kWidth<T>, Whole(), b);
      add(i + 2 * kWidth<T>, Whole(), c);
      add(i + 3 * kWidth<T>, Whole(), d);
    }
    for (; i + kWidth<T> <= end; i += kWidth<T>) add(i, Whole(), a);
    if (i < end) add(i, Rest{end - i}, b);
    for (int k = 0; k < kSums; ++k) total[k] += fold4((a[k] + b[k]) + (c[k] + d[k]));
  }
  for (int k = 0; k < kSums; ++k) sums[k] = Sum::total(total[k]);
}

// --- maxima ---------------------------------------------------------------------------------------------------------

// The largest of n >= 1 values; NaN where there is one.
template <class T>
POLYGRAD_INLINE T max(const T* x, std::int64_t n) {
  T best = x[0];
  std::int64_t i = 1;
  if (n >= kWidth<T>) {
    Vector<T> running, next;
    std::memcpy(&running, x, sizeof running);
    for (i = kWidth<T>; i + kWidth<T> <= n; i += kWidth<T>) {
      std::memcpy(&next, x + i, sizeof next);
      running = ((running >= next) | (running != running)) ? running : next;
    }
    for (int lane = 0; lane < kWidth<T>; ++lane) best = best >= running[lane] || best != best ? best : running[lane];
  }
  for (; i < n; ++i) best = best >= x[i] || best != best ? best : x[i];
  return best;
}

}  // namespace polygrad::lanes
