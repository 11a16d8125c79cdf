#include "ops/cpu/gelu_block.h"

#include <algorithm>

#include "engine/bfloat16.h"
#include "ops/cpu/gemm_bf16.h"
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

// In pieces that lie in f32 in the L1 cache: loops over one width of elements become better vector code.
constexpr std::int64_t kPiece = 256;

void gelu_block(const BFloat16* pre, BFloat16* y, std::int64_t n) {
  float x[kPiece];
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, n - begin);
    widen(pre + begin, x, count);
    gelu_block(x, x, count);
    round_row(x, y + begin, count);
  }
}

void gelu_backward_block(const BFloat16* pre, const BFloat16* g, BFloat16* dpre, BFloat16* h, std::int64_t n) {
  float x[kPiece], d[kPiece];
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, n - begin);
    widen(pre + begin, x, count);
    widen(g + begin, d, count);
    gelu_backward_block(x, d, d, x, count);
    round_row(x, h + begin, count);
    round_row(d, dpre + begin, count);
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
