#include "ops/cpu/attention_softmax.h"

#include <cstring>
#include <limits>

#include "engine/math.h"
#include "ops/cpu/lanes.h"

namespace polygrad::cpu::attention {
namespace {

// Reductions keep kRunning vectors of 64 bytes, in fixed positions: the order of operations is the same for vectors of
// any width, and no addition waits for the one before it.
template <class T>
using Vector = typename lanes::Vector64<T>::type;
template <class T>
constexpr std::int64_t kWidth = 64 / sizeof(T);
constexpr std::int64_t kRunning = 4;

template <class T>
POLYGRAD_INLINE Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Calls step(running, j) for each vector of [0, n), with `running` the accumulators' number, and rest(j) for each
// element beyond the last vector.
template <class T, class Step, class Rest>
POLYGRAD_INLINE void for_vectors(std::int64_t n, const Step& step, const Rest& rest) {
  std::int64_t j = 0;
  for (; j + kRunning * kWidth<T> <= n; j += kRunning * kWidth<T>) {
#pragma GCC unroll 4
    for (std::int64_t r = 0; r < kRunning; ++r) step(r, j + r * kWidth<T>);
  }
  for (; j + kWidth<T> <= n; j += kWidth<T>) step(0, j);
  for (; j < n; ++j) rest(j);
}

template <class T>
POLYGRAD_INLINE T sum_of(const Vector<T> (&running)[kRunning]) {
  const Vector<T> v = (running[0] + running[1]) + (running[2] + running[3]);
  T lanes[kWidth<T>];
  std::memcpy(lanes, &v, sizeof v);
  for (std::int64_t width = kWidth<T> / 2; width > 0; width /= 2) {
    for (std::int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

// e^(a - b), and 0 where a is -infinity, also if b is.
template <class T>
POLYGRAD_INLINE T exp_difference(T a, T b) {
  const T lowest = std::numeric_limits<T>::lowest();
  return a < lowest ? T(0) : math::exp(a - b);
}

// -infinity minus itself would be NaN; minus 0 it stays what it is, and e to that is 0.
template <class T>
POLYGRAD_INLINE T base_of(T maximum) {
  return maximum < std::numeric_limits<T>::lowest() ? T(0) : maximum;
}

}  // namespace

template <class T>
T row_maximum(const T* s, std::int64_t n, T at_least) {
  Vector<T> running[kRunning];
  for (Vector<T>& v : running) v = at_least - Vector<T>{};
  T result = at_least;
  for_vectors<T>(
      n,
      [&](std::int64_t r, std::int64_t j) {
        const Vector<T> v = load(s + j);
        running[r] = v > running[r] ? v : running[r];
      },
      [&](std::int64_t j) { result = s[j] > result ? s[j] : result; });
  for (const Vector<T>& v : running) {
    for (std::int64_t l = 0; l < kWidth<T>; ++l) result = v[l] > result ? v[l] : result;
  }
  return result;
}

template <class T>
T row_sum(const T* s, std::int64_t n) {
  Vector<T> running[kRunning] = {};
  T rest = 0;
  for_vectors<T>(
      n, [&](std::int64_t r, std::int64_t j) { running[r] += load(s + j); }, [&](std::int64_t j) { rest += s[j]; });
  return sum_of<T>(running) + rest;
}

template <class T>
T row_product(const T* a, const T* b, std::int64_t n) {
  Vector<T> running[kRunning] = {};
  T rest = 0;
  for_vectors<T>(
      n, [&](std::int64_t r, std::int64_t j) { running[r] += load(a + j) * load(b + j); },
      [&](std::int64_t j) { rest += a[j] * b[j]; });
  return sum_of<T>(running) + rest;
}

template <class T>
void exponentiate(T* s, std::int64_t n, T maximum, T factor) {
  const T base = base_of(maximum);
  for (std::int64_t j = 0; j < n; ++j) s[j] = math::exp(s[j] - base) * factor;
}

template <class T>
T softmax_next(T* s, std::int64_t n, RowState<T>& row) {
  const T grown = row_maximum(s, n, row.maximum);
  const T base = base_of(grown);
  for (std::int64_t j = 0; j < n; ++j) s[j] = math::exp(s[j] - base);
  const T correction = exp_difference(row.maximum, grown);
  row.sum = row.sum * correction + row_sum(s, n);
  row.maximum = grown;
  return correction;
}

template <class T>
void softmax_gradient_row(const T* p, T* dp, std::int64_t n, T inner) {
  for (std::int64_t j = 0; j < n; ++j) dp[j] = p[j] * (dp[j] - inner);
}

template <class T>
void softmax_gradient_row(T* __restrict s, T* __restrict dp, std::int64_t n, T maximum, T inverse_sum, T inner) {
  const T base = base_of(maximum);
  for (std::int64_t j = 0; j < n; ++j) {
    const T p = math::exp(s[j] - base) * inverse_sum;
    s[j] = p;
    dp[j] = p * (dp[j] - inner);
  }
}

#define POLYGRAD_INSTANTIATE(T)                                         \
  template T row_maximum<T>(const T*, std::int64_t, T);                 \
  template T row_sum<T>(const T*, std::int64_t);                        \
  template T row_product<T>(const T*, const T*, std::int64_t);          \
  template void exponentiate<T>(T*, std::int64_t, T, T);                \
  template T softmax_next<T>(T*, std::int64_t, RowState<T>&);           \
  template void softmax_gradient_row<T>(const T*, T*, std::int64_t, T); \
  template void softmax_gradient_row<T>(T*, T*, std::int64_t, T, T, T);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention
