// Softmax on the CPU: along contiguous rows, or, for an inner dimension, along a block of columns at once. The
// elementwise parts are vectorised loops over a row in cache; sums are f64 in the order of lanes.h, or of the rows.
#include "ops/kernels/softmax.h"

#include <algorithm>

#include "engine/math.h"
#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/lanes.h"

namespace polygrad {
namespace {

constexpr std::int64_t kGrain = 8192;   // elements in a task, at least
constexpr std::int64_t kColumns = 128;  // columns that are worked on at once where inner > 1

// The four maps, each along a row of n contiguous elements.

template <class T>
void softmax_row(const T* __restrict x, T* __restrict y, std::int64_t n) {
  const T largest = lanes::max(x, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = math::exp(x[i] - largest);
  const T scale = static_cast<T>(1.0 / lanes::sum(y, n));
  for (std::int64_t i = 0; i < n; ++i) y[i] *= scale;
}

template <class T>
void log_softmax_row(const T* __restrict x, T* __restrict y, std::int64_t n) {
  const T largest = lanes::max(x, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = math::exp(x[i] - largest);
  const T log_sum = static_cast<T>(math::log(lanes::sum(y, n)));
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] - largest) - log_sum;
}

template <class T>
void softmax_backward_row(const T* __restrict g, const T* __restrict y, T* __restrict dx, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) dx[i] = g[i] * y[i];
  const T mean = static_cast<T>(lanes::sum(dx, n));
  for (std::int64_t i = 0; i < n; ++i) dx[i] = y[i] * (g[i] - mean);
}

// dx = g - e^y·Σg. Where a prediction is nearly sure, what its target and its e^y have in common cancels first, and
// what is left is formed from e^y - 1.
POLYGRAD_INLINE float log_softmax_gradient(float g, float y, double total) {
  const float sum = static_cast<float>(total);
  const float sure = math::fma(math::expm1(y), -sum, static_cast<float>(static_cast<double>(g) - total));
  const float unsure = math::fma(math::exp(y), -sum, g);
  return y > -0.5f ? sure : unsure;
}
POLYGRAD_INLINE double log_softmax_gradient(double g, double y, double total) { return g - math::exp(y) * total; }

template <class T>
void log_softmax_backward_row(const T* __restrict g, const T* __restrict y, T* __restrict dx, std::int64_t n) {
  const double total = lanes::sum(g, n);
  for (std::int64_t i = 0; i < n; ++i) dx[i] = log_softmax_gradient(g[i], y[i], total);
}

// The same along n rows, `stride` apart, of `width` columns.

template <class T>
void largest_of_columns(const T* x, std::int64_t n, std::int64_t stride, std::int64_t width, T* largest) {
  std::copy_n(x, width, largest);
  for (std::int64_t j = 1; j < n; ++j) {
    const T* row = x + j * stride;
    for (std::int64_t i = 0; i < width; ++i) {
      largest[i] = ((largest[i] >= row[i]) | (largest[i] != largest[i])) ? largest[i] : row[i];
    }
  }
}

// y = e^(x - largest), and the sums of its columns
template <class T>
void exp_of_columns(const T* __restrict x, const T* __restrict largest, T* __restrict y, double* __restrict sums,
                    std::int64_t n, std::int64_t stride, std::int64_t width) {
  std::fill_n(sums, width, 0.0);
  for (std::int64_t j = 0; j < n; ++j) {
    const T* from = x + j * stride;
    T* to = y + j * stride;
    for (std::int64_t i = 0; i < width; ++i) to[i] = math::exp(from[i] - largest[i]);
    for (std::int64_t i = 0; i < width; ++i) sums[i] += static_cast<double>(to[i]);
  }
}

template <class T>
void softmax_columns(const T* x, T* y, std::int64_t n, std::int64_t stride, std::int64_t width) {
  T largest[kColumns] = {}, scale[kColumns] = {};
  double sums[kColumns] = {};
  largest_of_columns(x, n, stride, width, largest);
  exp_of_columns(x, largest, y, sums, n, stride, width);
  for (std::int64_t i = 0; i < width; ++i) scale[i] = static_cast<T>(1.0 / sums[i]);
  for (std::int64_t j = 0; j < n; ++j) {
    T* row = y + j * stride;
    for (std::int64_t i = 0; i < width; ++i) row[i] *= scale[i];
  }
}

template <class T>
void log_softmax_columns(const T* x, T* y, std::int64_t n, std::int64_t stride, std::int64_t width) {
  T largest[kColumns] = {}, log_sum[kColumns] = {};
  double sums[kColumns] = {};
  largest_of_columns(x, n, stride, width, largest);
  exp_of_columns(x, largest, y, sums, n, stride, width);
  for (std::int64_t i = 0; i < width; ++i) log_sum[i] = static_cast<T>(math::log(sums[i]));
  for (std::int64_t j = 0; j < n; ++j) {
    const T* from = x + j * stride;
    T* to = y + j * stride;
    for (std::int64_t i = 0; i < width; ++i) to[i] = (from[i] - largest[i]) - log_sum[i];
  }
}

template <class T>
void softmax_backward_columns(const T* g, const T* y, T* dx, std::int64_t n, std::int64_t stride, std::int64_t width) {
  double sums[kColumns] = {};
  T mean[kColumns] = {};
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = 0; i < width; ++i) {
      sums[i] += static_cast<double>(g[j * stride + i]) * static_cast<double>(y[j * stride + i]);
    }
  }
  for (std::int64_t i = 0; i < width; ++i) mean[i] = static_cast<T>(sums[i]);
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t row = j * stride;
    for (std::int64_t i = 0; i < width; ++i) dx[row + i] = y[row + i] * (g[row + i] - mean[i]);
  }
}

template <class T>
void log_softmax_backward_columns(const T* g, const T* y, T* dx, std::int64_t n, std::int64_t stride,
                                  std::int64_t width) {
  double total[kColumns] = {};
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = 0; i < width; ++i) total[i] += static_cast<double>(g[j * stride + i]);
  }
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t row = j * stride;
    for (std::int64_t i = 0; i < width; ++i) dx[row + i] = log_softmax_gradient(g[row + i], y[row + i], total[i]);
  }
}

// Calls row(first element) for each row where inner is 1, else columns(first element, width) for each block.
template <class Row, class Columns>
void for_each_piece(const TensorRef& x, const Row& row, const Columns& columns) {
  const std::int64_t outer = x.sizes[0], n = x.sizes[1], inner = x.sizes[2];
  if (x.numel() == 0) return;
  if (inner == 1) {
    parallel_for(0, outer, std::max<std::int64_t>(1, kGrain / n), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) row(o * n);
    });
    return;
  }
  const std::int64_t blocks = (inner + kColumns - 1) / kColumns;
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (n * std::min(inner, kColumns)));
  parallel_for(0, outer * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task % blocks * kColumns;
      columns(task / blocks * n * inner + first, std::min(kColumns, inner - first));
    }
  });
}

void softmax(Workspace&, const TensorRef& x, const TensorRef& y) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.as<T>();
    T* to = y.as<T>();
    const std::int64_t n = x.sizes[1], inner = x.sizes[2];
    for_each_piece(
        x, [&](std::int64_t at) { softmax_row(from + at, to + at, n); },
        [&](std::int64_t at, std::int64_t width) { softmax_columns(from + at, to + at, n, inner, width); });
  });
}

void log_softmax(Workspace&, const TensorRef& x, const TensorRef& y) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.as<T>();
    T* to = y.as<T>();
    const std::int64_t n = x.sizes[1], inner = x.sizes[2];
    for_each_piece(
        x, [&](std::int64_t at) { log_softmax_row(from + at, to + at, n); },
        [&](std::int64_t at, std::int64_t width) { log_softmax_columns(from + at, to + at, n, inner, width); });
  });
}

void softmax_backward(Workspace&, const TensorRef& g, const TensorRef& y, const TensorRef& dx) {
  dispatch_floating(g.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *from_g = g.as<T>(), *from_y = y.as<T>();
    T* to = dx.as<T>();
    const std::int64_t n = g.sizes[1], inner = g.sizes[2];
    for_each_piece(
        g, [&](std::int64_t at) { softmax_backward_row(from_g + at, from_y + at, to + at, n); },
        [&](std::int64_t at, std::int64_t width) {
          softmax_backward_columns(from_g + at, from_y + at, to + at, n, inner, width);
        });
  });
}

void log_softmax_backward(Workspace&, const TensorRef& g, const TensorRef& y, const TensorRef& dx) {
  dispatch_floating(g.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *from_g = g.as<T>(), *from_y = y.as<T>();
    T* to = dx.as<T>();
    const std::int64_t n = g.sizes[1], inner = g.sizes[2];
    for_each_piece(
        g, [&](std::int64_t at) { log_softmax_backward_row(from_g + at, from_y + at, to + at, n); },
        [&](std::int64_t at, std::int64_t width) {
          log_softmax_backward_columns(from_g + at, from_y + at, to + at, n, inner, width);
        });
  });
}

}  // namespace

constinit const SoftmaxKernels cpu_softmax_kernels = {softmax, softmax_backward, log_softmax, log_softmax_backward};

}  // namespace polygrad
