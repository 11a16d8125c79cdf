// Sums and maxima of a row, with the instruction set's widest vectors and in an order of their own.
//
// A compiler may not reorder the additions of a plain loop, so it cannot vectorise one. Here the order is fixed in the
// text: element i is added to lane i mod 16, and the lanes are added pairwise at the end. So the bits depend neither on
// the width of the machine's vectors nor on the number of threads. Sums are f64, also of f32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/tensor_ref.h"

namespace polygrad::lanes {

// Where the machine's vectors are shorter, GCC remarks that a function would return these in another way. All are
// inline.
#pragma GCC diagnostic ignored "-Wpsabi"

using Double8 = double __attribute__((vector_size(64)));
using Float8 = float __attribute__((vector_size(32)));
using Float16 = float __attribute__((vector_size(64)));

POLYGRAD_INLINE Double8 load8(const float* p) {
  Float8 v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, Double8);
}
POLYGRAD_INLINE Double8 load8(const double* p) {
  Double8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Sixteen running sums in f64.
struct Sum {
  Double8 low = {}, high = {};

  template <class T>
  POLYGRAD_INLINE void add16(const T* p) {
    low += load8(p);
    high += load8(p + 8);
  }
  POLYGRAD_INLINE void add(const Float16& a, const Float16& b) {
    const Float16 sum = a + b;
    Float8 half[2];
    std::memcpy(half, &sum, sizeof half);
    low += __builtin_convertvector(half[0], Double8);
    high += __builtin_convertvector(half[1], Double8);
  }
  POLYGRAD_INLINE void add(const Double8& a, const Double8& b) {
    low += a;
    high += b;
  }
  POLYGRAD_INLINE void add(int lane, double value) {
    if (lane < 8) {
      low[lane] += value;
    } else {
      high[lane - 8] += value;
    }
  }
  POLYGRAD_INLINE double total() const {
    const Double8 s = low + high;
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
};

// Σ x[i]
template <class T>
POLYGRAD_INLINE double sum(const T* x, std::int64_t n) {
  Sum lanes;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) lanes.add16(x + i);
  for (int lane = 0; i < n; ++i, ++lane) lanes.add(lane, static_cast<double>(x[i]));
  return lanes.total();
}

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

// How a row is read: a whole vector, or its last few elements and zeros.
struct Whole {
  template <class T>
  POLYGRAD_INLINE Vector<T> operator()(const T* p) const {
    Vector<T> v;
    std::memcpy(&v, p, sizeof v);
    return v;
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
    return Whole()(static_cast<const T*>(part));
  }
  template <class T>
  POLYGRAD_INLINE Vector<T> keep(const Vector<T>& v) const {
    using Index = typename Vector64<T>::index;
    using Number = std::remove_reference_t<decltype(Index{}[0])>;
    return Vector64<T>::kIndex < (Index{} + static_cast<Number>(count)) ? v : Vector<T>{};
  }
};

// Sums of several terms that are formed from rows of T, each a vector of T: terms(i, read, t) forms those of the
// elements from i on, which it reads by read(pointer). A lane adds at most kRun numbers in T; the rest is f64.
template <class T, int kSums, class Terms>
POLYGRAD_INLINE void sum_terms(std::int64_t n, const Terms& terms, double (&sums)[kSums]) {
  constexpr std::int64_t kSets = 4, kRun = 8, kStep = kSets * kWidth<T>, kBlock = kRun * kStep;
  Sum total[kSums];
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t end = first + kBlock < n ? first + kBlock : n;
    Vector<T> lanes[kSets][kSums] = {}, t[kSums];
    std::int64_t i = first;
    for (; i + kStep <= end; i += kStep) {
      for (std::int64_t set = 0; set < kSets; ++set) {
        terms(i + set * kWidth<T>, Whole(), t);
        for (int k = 0; k < kSums; ++k) lanes[set][k] += t[k];
      }
    }
    for (; i + kWidth<T> <= end; i += kWidth<T>) {
      terms(i, Whole(), t);
      for (int k = 0; k < kSums; ++k) lanes[0][k] += t[k];
    }
    if (i < end) {
      const Rest rest{end - i};
      terms(i, rest, t);
      for (int k = 0; k < kSums; ++k) lanes[1][k] += rest.keep<T>(t[k]);
    }
    for (int k = 0; k < kSums; ++k) total[k].add(lanes[0][k] + lanes[1][k], lanes[2][k] + lanes[3][k]);
  }
  for (int k = 0; k < kSums; ++k) sums[k] = total[k].total();
}

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
