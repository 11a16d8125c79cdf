#include "ops/cpu/attention_softmax.h"

#include <algorithm>
#include <limits>

#include "engine/math.h"

namespace polygrad::cpu::attention {
namespace {

// Reductions keep this many partial results, in fixed positions: the compiler may then use vectors of any width without
// changing the order of additions.
constexpr std::int64_t kLanes = 16;

// e^(a - b), and 0 where a is -infinity, also if b is.
template <class T>
POLYGRAD_INLINE T exp_difference(T a, T b) {
  const T lowest = std::numeric_limits<T>::lowest();
  return a < lowest ? T(0) : math::exp(a - b);
}

template <class T>
POLYGRAD_INLINE T sum_of(T (&lanes)[kLanes]) {
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

}  // namespace

template <class T>
T row_maximum(const T* s, std::int64_t n, T at_least) {
  T lanes[kLanes];
  for (T& lane : lanes) lane = at_least;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = s[j + l] > lanes[l] ? s[j + l] : lanes[l];
  }
  for (std::int64_t l = 0; j + l < n; ++l) lanes[l] = s[j + l] > lanes[l] ? s[j + l] : lanes[l];
  T result = at_least;
  for (const T lane : lanes) result = lane > result ? lane : result;
  return result;
}

template <class T>
T row_sum(const T* s, std::int64_t n) {
  T lanes[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += s[j + l];
  }
  for (std::int64_t l = 0; j + l < n; ++l) lanes[l] += s[j + l];
  return sum_of(lanes);
}

template <class T>
T row_product(const T* a, const T* b, std::int64_t n) {
  T lanes[kLanes] = {};
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += a[j + l] * b[j + l];
  }
  for (std::int64_t l = 0; j + l < n; ++l) lanes[l] += a[j + l] * b[j + l];
  return sum_of(lanes);
}

template <class T>
void exponentiate(T* s, std::int64_t n, T maximum, T factor) {
  // -infinity minus itself would be NaN; minus 0 it stays what it is, and e to that is 0.
  const T base = maximum < std::numeric_limits<T>::lowest() ? T(0) : maximum;
  for (std::int64_t j = 0; j < n; ++j) s[j] = math::exp(s[j] - base) * factor;
}

template <class T>
void softmax_next_tile(T* s, std::int64_t rows, std::int64_t cols, T* maximum, T* sum, T* correction) {
  for (std::int64_t i = 0; i < rows; ++i) {
    T* row = s + i * cols;
    const T grown = row_maximum(row, cols, maximum[i]);
    correction[i] = exp_difference(maximum[i], grown);
    exponentiate(row, cols, grown, T(1));
    sum[i] = sum[i] * correction[i] + row_sum(row, cols);
    maximum[i] = grown;
  }
}

template <class T>
void softmax_gradient_row(const T* p, T* dp, std::int64_t n, T inner) {
  for (std::int64_t j = 0; j < n; ++j) dp[j] = p[j] * (dp[j] - inner);
}

#define POLYGRAD_INSTANTIATE(T)                                                   \
  template T row_maximum<T>(const T*, std::int64_t, T);                           \
  template T row_product<T>(const T*, const T*, std::int64_t);                    \
  template T row_sum<T>(const T*, std::int64_t);                                  \
  template void exponentiate<T>(T*, std::int64_t, T, T);                          \
  template void softmax_next_tile<T>(T*, std::int64_t, std::int64_t, T*, T*, T*); \
  template void softmax_gradient_row<T>(const T*, T*, std::int64_t, T);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention
