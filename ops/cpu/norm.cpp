// Layer normalisation on the CPU: one pass over memory each way; a row's own passes run in cache.
//
// Statistics are f64, and an f32 row is centred with the mean in two parts, so that a mean far larger than the spread
// costs nothing. The gradients of weight and bias are summed in a fixed number of groups of rows, then over the groups.
#include "ops/kernels/norm.h"

#include <algorithm>
#include <cmath>

#include "engine/math.h"
#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/lanes.h"

namespace polygrad {
namespace {

constexpr std::int64_t kGrain = 8192;  // elements in a task of the forward, at least
constexpr std::int64_t kGroups = 32;   // groups of rows in the backward, at most
constexpr std::int64_t kMinRows = 16;  // rows in a group, at least

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// mean = high + low, each a T.
template <class T>
struct Mean {
  T high, low;
  explicit Mean(double mean) : high(static_cast<T>(mean)), low(static_cast<T>(mean - static_cast<double>(high))) {}
};

// centred = x - mean
template <class T>
void centre(const T* __restrict x, Mean<T> mean, T* __restrict centred, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) centred[i] = (x[i] - mean.high) - mean.low;
}

template <class T>
double sum_of_squares(const T* __restrict x, double* __restrict squares, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) squares[i] = static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return lanes::sum(squares, n);
}

template <class T>
void finish_row(const T* __restrict centred, T rstd, const T* __restrict weight, const T* __restrict bias,
                T* __restrict y, std::int64_t n) {
  if (weight && bias) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = math::fma(centred[i] * rstd, weight[i], bias[i]);
  } else if (weight) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = centred[i] * rstd * weight[i];
  } else if (bias) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = math::fma(centred[i], rstd, bias[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) y[i] = centred[i] * rstd;
  }
}

void layer_norm(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias, double eps,
                const TensorRef& y, const TensorRef& mean, const TensorRef& rstd) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.sizes[0], n = x.sizes[1];
    if (rows == 0 || n == 0) return;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / n);
    // Per task: a row's centred values and their squares.
    const std::int64_t tasks = ceil_div(rows, grain);
    T* all_centred = workspace.allocate<T>(tasks * n);
    double* all_squares = workspace.allocate<double>(tasks * n);
    parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      T* centred = all_centred + begin / grain * n;
      double* squares = all_squares + begin / grain * n;
      for (std::int64_t r = begin; r < end; ++r) {
        const T* row = x.as<T>() + r * n;
        const double m = lanes::sum(row, n) / static_cast<double>(n);
        centre(row, Mean<T>(m), centred, n);
        const double s = 1.0 / std::sqrt(sum_of_squares(centred, squares, n) / static_cast<double>(n) + eps);
        mean.as<double>()[r] = m;
        rstd.as<double>()[r] = s;
        finish_row(centred, static_cast<T>(s), weight.as<T>(), bias.as<T>(), y.as<T>() + r * n, n);
      }
    });
  });
}

// h = g·weight and x̂; products = h·x̂
template <class T>
void normalise_row(const T* __restrict g, const T* __restrict x, const T* __restrict weight, Mean<T> mean, T rstd,
                   T* __restrict h, T* __restrict normalised, T* __restrict products, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) normalised[i] = ((x[i] - mean.high) - mean.low) * rstd;
  if (weight) {
    for (std::int64_t i = 0; i < n; ++i) h[i] = g[i] * weight[i];
  } else {
    std::copy_n(g, n, h);
  }
  for (std::int64_t i = 0; i < n; ++i) products[i] = h[i] * normalised[i];
}

// dx = rstd·(h - mean(h) - x̂·mean(h·x̂))
template <class T>
void gradient_row(const T* __restrict h, const T* __restrict normalised, T mean_h, T mean_product, T rstd,
                  T* __restrict dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = rstd * ((h[i] - mean_h) - normalised[i] * mean_product);
}

template <class T>
void add_row(const T* __restrict g, const T* __restrict normalised, double* __restrict dweight,
             double* __restrict dbias, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    dweight[i] += static_cast<double>(g[i]) * static_cast<double>(normalised[i]);
    dbias[i] += static_cast<double>(g[i]);
  }
}

// out[i] = Σ partial[group][i], groups `stride` apart, in order
template <class T>
void add_groups(const double* partial, std::int64_t groups, std::int64_t stride, T* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    double total = 0;
    for (std::int64_t k = 0; k < groups; ++k) total += partial[k * stride + i];
    out[i] = static_cast<T>(total);
  }
}

void layer_norm_backward(Workspace& workspace, const TensorRef& g, const TensorRef& x, const TensorRef& weight,
                         const TensorRef& mean, const TensorRef& rstd, const TensorRef& dx, const TensorRef& dweight,
                         const TensorRef& dbias) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.sizes[0], n = x.sizes[1];
    if (n == 0) return;
    const bool parameters = dweight.present() || dbias.present();
    const std::int64_t step = std::max(kMinRows, ceil_div(rows, kGroups));
    const std::int64_t groups = ceil_div(rows, step);
    T* scratch = workspace.allocate<T>(groups * 3 * n);                                   // h, x̂, products of a row
    double* partial = parameters ? workspace.allocate<double>(groups * 2 * n) : nullptr;  // dweight, dbias of a group
    parallel_for(0, groups, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t group = first; group < last; ++group) {
        T *h = scratch + group * 3 * n, *normalised = h + n, *products = normalised + n;
        double* sums = parameters ? partial + group * 2 * n : nullptr;
        if (parameters) std::fill_n(sums, 2 * n, 0.0);
        for (std::int64_t r = group * step; r < std::min(rows, (group + 1) * step); ++r) {
          const T* row_g = g.as<T>() + r * n;
          const T scale = static_cast<T>(rstd.as<double>()[r]);
          normalise_row(row_g, x.as<T>() + r * n, weight.as<T>(), Mean<T>(mean.as<double>()[r]), scale, h, normalised,
                        products, n);
          if (dx.present()) {
            const T mean_h = static_cast<T>(lanes::sum(h, n) / static_cast<double>(n));
            const T mean_product = static_cast<T>(lanes::sum(products, n) / static_cast<double>(n));
            gradient_row(h, normalised, mean_h, mean_product, scale, dx.as<T>() + r * n, n);
          }
          if (parameters) add_row(row_g, normalised, sums, sums + n, n);
        }
      }
    });
    if (dweight.present()) add_groups(partial, groups, 2 * n, dweight.as<T>(), n);
    if (dbias.present()) add_groups(partial + n, groups, 2 * n, dbias.as<T>(), n);
  });
}

}  // namespace

constinit const NormKernels cpu_norm_kernels = {layer_norm, layer_norm_backward};

}  // namespace polygrad
