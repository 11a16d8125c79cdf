#include "ops/cpu/gelu_block.h"

#include "engine/bfloat16.h"
#include "ops/kernels/unary_functors.h"

namespace polygrad::cpu {

// `ivdep`: an output is an input's memory or apart from it, so no element is written before it is read.

template <class T>
void gelu_block(const T* pre, T* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = functors::Gelu::value(pre[i]);
}

template <class T>
void gelu_pair_block(const T* pre, T* y, T* slope, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const math::ValueAndSlope<T> both = functors::Gelu::value_and_slope(pre[i]);
    y[i] = both.value;
    slope[i] = both.slope;
  }
}

template <class T>
void gelu_backward_block(const T* pre, const T* g, T* dpre, T* h, std::int64_t n) {
  if (h == nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) dpre[i] = g[i] * functors::Gelu::derivative(pre[i], T(0));
    return;
  }
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const math::ValueAndSlope<T> both = functors::Gelu::value_and_slope(pre[i]);
    const T upper = g[i];
    h[i] = both.value;
    dpre[i] = upper * both.slope;
  }
}

void gelu_block(const BFloat16* pre, BFloat16* y, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) y[i] = round_to_bfloat16(functors::Gelu::value(widen(pre[i])));
}

void gelu_backward_block(const BFloat16* pre, const BFloat16* g, BFloat16* dpre, BFloat16* h, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = widen(pre[i]), upper = widen(g[i]);
    h[i] = round_to_bfloat16(functors::Gelu::value(x));
    dpre[i] = round_to_bfloat16(upper * functors::Gelu::derivative(x, 0.0f));
  }
}

#define POLYGRAD_INSTANTIATE(T)                                     \
  template void gelu_block<T>(const T*, T*, std::int64_t);          \
  template void gelu_pair_block<T>(const T*, T*, T*, std::int64_t); \
  template void gelu_backward_block<T>(const T*, const T*, T*, T*, std::int64_t);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu
