#include "ops/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "engine/math.h"
#include "ops/cpu/lanes.h"

namespace polygrad::cpu {
namespace {

// Rows that are worked on together, step by step: what one row waits for (the end of a sum, a root) is no time lost,
// and the gradients of weight and bias are summed over these in registers, in T, before they go into f64.
constexpr std::int64_t kRowsAtOnce = 8;

// x̂ = (x - high)·scale + shift, where mean = high + low, scale = rstd and shift = -low·rstd.
template <class T>
struct Centre {
  T high = 0, scale = 0, shift = 0;
  POLYGRAD_INLINE Centre() {}
  POLYGRAD_INLINE Centre(double mean, double rstd)
      : high(static_cast<T>(mean)),
        scale(static_cast<T>(rstd)),
        shift(static_cast<T>((static_cast<double>(high) - mean) * rstd)) {}
  POLYGRAD_INLINE T operator()(T x) const { return math::fma(x - high, scale, shift); }
};

// Mean and variance of a row whose squares a float doesn't hold, or hardly.
template <class T>
__attribute__((noinline)) void moments_in_f64(const T* x, std::int64_t n, double* mean, double* variance) {
  *mean = lanes::sum(x, n) / static_cast<double>(n);
  const T high = static_cast<T>(*mean), low = static_cast<T>(*mean - static_cast<double>(high));
  const double squares = lanes::sum_of(n, [=](std::int64_t i) {
    const double centred = static_cast<double>((x[i] - high) - low);
    return centred * centred;
  });
  *variance = squares / static_cast<double>(n);
}

// Means and variances of up to kRowsAtOnce rows: a mean each; then what is left of it, and the squares, about the
// first.
template <class T>
void moments_of(const T* x, std::int64_t rows, std::int64_t n, double* mean, double* variance) {
  const double share = 1.0 / static_cast<double>(n);
  T about[kRowsAtOnce];
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum[1];
    lanes::sum_rows<T>(
        n, [row = x + r * n](std::int64_t i, auto read, lanes::Vector<T>* sums) { sums[0] += read(row + i); }, sum);
    about[r] = static_cast<T>(sum[0] * share);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    double sums[2];
    lanes::sum_rows<T>(
        n,
        [row = x + r * n, centre = about[r]](std::int64_t i, auto read, lanes::Vector<T>* sums) {
          const lanes::Vector<T> centred = read.template keep<T>(read(row + i) - centre);
          sums[0] += centred;
          sums[1] = lanes::fma(centred, centred, sums[1]);
        },
        sums);
    const double rest = sums[0] * share;
    mean[r] = static_cast<double>(about[r]) + rest;
    variance[r] = std::max(sums[1] * share - rest * rest, 0.0);
    // The squares of smaller numbers may have been rounded to nothing, and those of larger ones to infinity.
    if (sizeof(T) == sizeof(float) && !(sums[1] > 1e-24 && sums[1] < 1e38)) {
      moments_in_f64(x + r * n, n, mean + r, variance + r);
    }
  }
}

// Outputs may take the place of inputs: each element is read before it is written.

template <class T>
void write_row(const T* x, Centre<T> centre, const T* weight, const T* bias, T* y, std::int64_t n) {
  if (weight && bias) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = math::fma(centre(x[i]), weight[i], bias[i]);
  } else if (weight) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = centre(x[i]) * weight[i];
  } else if (bias) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = centre(x[i]) + bias[i];
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) y[i] = centre(x[i]);
  }
}

// Σ h and Σ h·x̂ where sums of f32 overflow: a few numbers near the largest float, perhaps.
template <class T>
__attribute__((noinline)) void sums_in_f64(const T* g, const T* x, const T* weight, const Centre<T>& centre,
                                           std::int64_t n, double (&sums)[2]) {
  const auto h = [=](std::int64_t i) { return static_cast<double>(weight ? g[i] * weight[i] : g[i]); };
  sums[0] = lanes::sum_of(n, h);
  sums[1] = lanes::sum_of(n, [&](std::int64_t i) { return h(i) * static_cast<double>(centre(x[i])); });
}

struct Means {
  double h, product;
};

// mean(h) and mean(h·x̂)
template <class T>
POLYGRAD_INLINE Means means_of(const T* g, const T* x, const T* weight, const Centre<T>& centre, std::int64_t n) {
  double sums[2];
  const auto add_up = [&](auto weighted) {
    lanes::sum_rows<T>(
        n,
        [&](std::int64_t i, auto read, lanes::Vector<T>* sums) {
          lanes::Vector<T> h = read(g + i);
          if constexpr (decltype(weighted)::value) h *= read(weight + i);
          const lanes::Vector<T> zero = {}, normalised = lanes::fma(read(x + i) - centre.high, zero + centre.scale,
                                                                    zero + centre.shift);
          sums[0] += h;
          sums[1] = lanes::fma(h, normalised, sums[1]);
        },
        sums);
  };
  weight ? add_up(std::true_type{}) : add_up(std::false_type{});
  if (sizeof(T) == sizeof(float) && !(std::abs(sums[0]) < 1e38 && std::abs(sums[1]) < 1e38)) {
    sums_in_f64(g, x, weight, centre, n, sums);
  }
  const double share = 1.0 / static_cast<double>(n);
  return {sums[0] * share, sums[1] * share};
}

template <class T>
void gradient_row(const T* g, const T* x, const T* weight, Centre<T> centre, T mean_h, T mean_product, const T* add,
                  T* dx, std::int64_t n) {
  const auto loop = [=](auto factor, auto start) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      const T rest = math::fma(centre(x[i]), -mean_product, g[i] * factor(i) - mean_h);
      dx[i] = math::fma(rest, centre.scale, start(i));
    }
  };
  const auto one = [](std::int64_t) { return T(1); };
  const auto zero = [](std::int64_t) { return T(0); };
  const auto of_weight = [=](std::int64_t i) { return weight[i]; };
  const auto of_add = [=](std::int64_t i) { return add[i]; };
  if (weight && add) {
    loop(of_weight, of_add);
  } else if (weight) {
    loop(of_weight, zero);
  } else if (add) {
    loop(one, of_add);
  } else {
    loop(one, zero);
  }
}

// dweight += Σ g·x̂ and dbias += Σ g over kCount rows.
template <std::int64_t kCount, class T>
void add_columns(const T* __restrict g, const T* __restrict x, const Centre<T>* __restrict centre, std::int64_t n,
                 double* __restrict dweight, double* __restrict dbias) {
  for (std::int64_t i = 0; i < n; ++i) {
    T products = 0, sum = 0;
    for (std::int64_t r = 0; r < kCount; ++r) {
      products = math::fma(g[r * n + i], centre[r](x[r * n + i]), products);
      sum += g[r * n + i];
    }
    dweight[i] += static_cast<double>(products);
    dbias[i] += static_cast<double>(sum);
  }
}

}  // namespace

template <class T>
void layer_norm_rows_again(const T* x, std::int64_t rows, std::int64_t n, const T* weight, const T* bias,
                           const double* mean, const double* rstd, T* y) {
  for (std::int64_t r = 0; r < rows; ++r) {
    write_row(x + r * n, Centre<T>(mean[r], rstd[r]), weight, bias, y + r * n, n);
  }
}

template <class T>
void layer_norm_rows(const T* x, std::int64_t rows, std::int64_t n, const T* weight, const T* bias, double eps, T* y,
                     double* mean, double* rstd) {
  for (std::int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, rows - first);
    double variance[kRowsAtOnce];
    moments_of(x + first * n, count, n, mean + first, variance);
    for (std::int64_t r = 0; r < count; ++r) rstd[first + r] = 1.0 / std::sqrt(variance[r] + eps);
    layer_norm_rows_again(x + first * n, count, n, weight, bias, mean + first, rstd + first, y + first * n);
  }
}

template <class T>
void layer_norm_rows_backward(const T* g, const T* x, std::int64_t rows, std::int64_t n, const T* weight,
                              const double* mean, const double* rstd, const T* add, T* dx, double* dweight,
                              double* dbias) {
  for (std::int64_t first = 0; first < rows; first += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, rows - first);
    Centre<T> centres[kRowsAtOnce];
    for (std::int64_t r = 0; r < count; ++r) centres[r] = Centre<T>(mean[first + r], rstd[first + r]);
    if (dweight != nullptr && count == kRowsAtOnce) {
      add_columns<kRowsAtOnce>(g + first * n, x + first * n, centres, n, dweight, dbias);
    } else if (dweight != nullptr) {
      for (std::int64_t r = 0; r < count; ++r) {
        add_columns<1>(g + (first + r) * n, x + (first + r) * n, centres + r, n, dweight, dbias);
      }
    }
    if (dx == nullptr) continue;
    Means means[kRowsAtOnce];
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t at = (first + r) * n;
      means[r] = means_of(g + at, x + at, weight, centres[r], n);
    }
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t at = (first + r) * n;
      gradient_row(g + at, x + at, weight, centres[r], static_cast<T>(means[r].h), static_cast<T>(means[r].product),
                   add ? add + at : nullptr, dx + at, n);
    }
  }
}

#define POLYGRAD_INSTANTIATE(T)                                                                                      \
  template void layer_norm_rows<T>(const T*, std::int64_t, std::int64_t, const T*, const T*, double, T*, double*,    \
                                   double*);                                                                         \
  template void layer_norm_rows_again<T>(const T*, std::int64_t, std::int64_t, const T*, const T*, const double*,    \
                                         const double*, T*);                                                         \
  template void layer_norm_rows_backward<T>(const T*, const T*, std::int64_t, std::int64_t, const T*, const double*, \
                                            const double*, const T*, T*, double*, double*);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu
