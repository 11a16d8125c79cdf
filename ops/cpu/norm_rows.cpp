#include "ops/cpu/norm_rows.h"

#include <algorithm>
#include <cmath>

#include "engine/math.h"
#include "ops/cpu/lanes.h"

namespace polygrad::cpu {
namespace {

// Rows whose share of the gradients of weight and bias is summed in T, in registers, before it goes into f64.
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

struct Moments {
  double mean, variance;
};

// For rows whose squares a float doesn't hold, or hardly.
template <class T>
Moments moments_in_f64(const T* x, std::int64_t n) {
  const double mean = lanes::sum(x, n) / static_cast<double>(n);
  const T high = static_cast<T>(mean), low = static_cast<T>(mean - static_cast<double>(high));
  lanes::Sum squares;
  for (std::int64_t i = 0; i < n; ++i) {
    const double centred = static_cast<double>((x[i] - high) - low);
    squares.add(static_cast<int>(i % 16), centred * centred);
  }
  return {mean, squares.total() / static_cast<double>(n)};
}

// Two passes: a mean, then what is left of it, and the squares, about the first.
template <class T>
Moments moments_of(const T* x, std::int64_t n) {
  const double count = static_cast<double>(n);
  double sum[1], sums[2];
  lanes::sum_terms<T>(
      n, [x](std::int64_t i, auto read, lanes::Vector<T>* t) { t[0] = read(x + i); }, sum);
  const T about = static_cast<T>(sum[0] / count);
  lanes::sum_terms<T>(
      n,
      [x, about](std::int64_t i, auto read, lanes::Vector<T>* t) {
        t[0] = read(x + i) - about;
        t[1] = t[0] * t[0];
      },
      sums);
  const double rest = sums[0] / count;
  // The squares of smaller numbers may have been rounded to nothing, and those of larger ones to infinity.
  if (sizeof(T) == sizeof(float) && !(sums[1] > 1e-24 && sums[1] < 1e38)) return moments_in_f64(x, n);
  return {static_cast<double>(about) + rest, std::max(sums[1] / count - rest * rest, 0.0)};
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

// mean(h) and mean(h·x̂)
template <class T>
void means_of(const T* g, const T* x, const T* weight, const Centre<T>& centre, std::int64_t n, double (&means)[2]) {
  const auto terms = [&](auto weighted) {
    lanes::sum_terms<T>(
        n,
        [&](std::int64_t i, auto read, lanes::Vector<T>* t) {
          t[0] = read(g + i);
          if constexpr (decltype(weighted)::value) t[0] *= read(weight + i);
          t[1] = t[0] * ((read(x + i) - centre.high) * centre.scale + centre.shift);
        },
        means);
  };
  weight ? terms(std::true_type{}) : terms(std::false_type{});
  if (sizeof(T) == sizeof(float) && !(std::isfinite(means[0]) && std::isfinite(means[1]))) {
    lanes::Sum h, product;  // a few numbers near the largest float, perhaps
    for (std::int64_t i = 0; i < n; ++i) {
      const T value = weight ? g[i] * weight[i] : g[i];
      h.add(static_cast<int>(i % 16), static_cast<double>(value));
      product.add(static_cast<int>(i % 16), static_cast<double>(value) * static_cast<double>(centre(x[i])));
    }
    means[0] = h.total();
    means[1] = product.total();
  }
  means[0] /= static_cast<double>(n);
  means[1] /= static_cast<double>(n);
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
void layer_norm_rows(const T* x, std::int64_t rows, std::int64_t n, const T* weight, const T* bias, double eps, T* y,
                     double* mean, double* rstd) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Moments moments = moments_of(x + r * n, n);
    mean[r] = moments.mean;
    rstd[r] = 1.0 / std::sqrt(moments.variance + eps);
    write_row(x + r * n, Centre<T>(mean[r], rstd[r]), weight, bias, y + r * n, n);
  }
}

template <class T>
void layer_norm_rows_again(const T* x, std::int64_t rows, std::int64_t n, const T* weight, const T* bias,
                           const double* mean, const double* rstd, T* y) {
  for (std::int64_t r = 0; r < rows; ++r) {
    write_row(x + r * n, Centre<T>(mean[r], rstd[r]), weight, bias, y + r * n, n);
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
    for (std::int64_t r = first; r < first + count; ++r) {
      const Centre<T>& centre = centres[r - first];
      double means[2];
      means_of(g + r * n, x + r * n, weight, centre, n, means);
      gradient_row(g + r * n, x + r * n, weight, centre, static_cast<T>(means[0]), static_cast<T>(means[1]),
                   add ? add + r * n : nullptr, dx + r * n, n);
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
