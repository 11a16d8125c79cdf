// Sums and maxima of a row, with the instruction set's widest vectors and in an order of their own.
//
// A compiler may not reorder the additions of a plain loop, so it cannot vectorise one. Here the order is fixed in the
// text: element i is added to lane i mod 16, and the lanes are added pairwise at the end. So the bits depend neither on
// the width of the machine's vectors nor on the number of threads. Sums are f64, also of f32.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/tensor_ref.h"

namespace polygrad::lanes {

using Double8 = double __attribute__((vector_size(64)));
using Float8 = float __attribute__((vector_size(32)));

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
};
template <>
struct Vector64<double> {
  using type = double __attribute__((vector_size(64)));
};

// The largest of n >= 1 values; NaN where there is one.
template <class T>
POLYGRAD_INLINE T max(const T* x, std::int64_t n) {
  using Vector = typename Vector64<T>::type;
  constexpr std::int64_t kWidth = 64 / sizeof(T);
  T best = x[0];
  std::int64_t i = 1;
  if (n >= kWidth) {
    Vector running, next;
    std::memcpy(&running, x, sizeof running);
    for (i = kWidth; i + kWidth <= n; i += kWidth) {
      std::memcpy(&next, x + i, sizeof next);
      running = ((running >= next) | (running != running)) ? running : next;
    }
    for (int lane = 0; lane < kWidth; ++lane) best = best >= running[lane] || best != best ? best : running[lane];
  }
  for (; i < n; ++i) best = best >= x[i] || best != best ? best : x[i];
  return best;
}

}  // namespace polygrad::lanes
