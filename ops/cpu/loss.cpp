// The loss family on the CPU. A row's log-sum-exp is kept in f64, so that a small loss survives large logits:
// for f32 logits (1000, 990) it is 4.5e-5, which f32 loses beside 1000.
#include "ops/kernels/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/math.h"
#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/lanes.h"

namespace polygrad {
namespace {

constexpr std::int64_t kChunk = 16384;  // elements of a chunk
constexpr int kLanes = 16;              // partial results of a reduction, so that it becomes vector instructions

// Logits (N, K, S) and the rows in them.
struct Rows {
  std::int64_t batch, classes, places;
  explicit Rows(const TensorRef& logits) : batch(logits.sizes[0]), classes(logits.sizes[1]), places(logits.sizes[2]) {}
  std::int64_t count() const { return batch * places; }
  // Where class 0 of a row lies; the next class is `places` elements further on.
  std::int64_t first(std::int64_t row) const { return row / places * classes * places + row % places; }
  std::int64_t grain() const { return std::max<std::int64_t>(1, kChunk / (classes + 1)); }
};

// Calls f(stride) with a stride that the compiler knows where it is 1.
template <class F>
void dispatch_stride(std::int64_t stride, const F& f) {
  struct Unit {
    constexpr operator std::int64_t() const { return 1; }
  };
  if (stride == 1) return f(Unit{});
  f(stride);
}

template <class T, class Stride>
double log_sum_exp_of(const T* x, std::int64_t classes, Stride stride) {
  T top[kLanes];
  std::fill_n(top, kLanes, -std::numeric_limits<T>::infinity());
  double sum[kLanes] = {};
  const std::int64_t whole = classes / kLanes * kLanes;
  for (std::int64_t k = 0; k < whole; k += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) top[lane] = math::at_least(x[(k + lane) * stride], top[lane]);
  }
  T maximum = -std::numeric_limits<T>::infinity();
  for (std::int64_t k = whole; k < classes; ++k) maximum = math::at_least(x[k * stride], maximum);
  for (int lane = 0; lane < kLanes; ++lane) maximum = math::at_least(top[lane], maximum);
  for (std::int64_t k = 0; k < whole; k += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += static_cast<double>(math::exp(x[(k + lane) * stride] - maximum));
    }
  }
  double total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  for (std::int64_t k = whole; k < classes; ++k) total += static_cast<double>(math::exp(x[k * stride] - maximum));
  return static_cast<double>(maximum) + std::log(total);
}

// The weight of each class as f64, and their sum; all 1 where no weights are given.
struct ClassWeights {
  double* weight;
  double sum = 0;
  ClassWeights(Workspace& workspace, const TensorRef& given, std::int64_t classes)
      : weight(workspace.allocate<double>(classes)) {
    for (std::int64_t k = 0; k < classes; ++k) {
      weight[k] = !given.present()            ? 1
                  : given.dtype == DType::f64 ? given.as<const double>()[k]
                                              : static_cast<double>(given.as<const float>()[k]);
      sum += weight[k];
    }
  }
};

// Row losses: as they are, or their sum.
template <class T>
void write_losses(const double* losses, std::int64_t rows, const LossReduction& reduction, double divisor, T* y) {
  if (!reduction.reduce) {
    for (std::int64_t row = 0; row < rows; ++row) y[row] = static_cast<T>(losses[row]);
    return;
  }
  y[0] = static_cast<T>(lanes::sum(losses, rows) / divisor);
}

void cross_entropy(Workspace& workspace, const TensorRef& logits, const TensorRef& target,
                   const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& y,
                   const TensorRef& log_sum_exp, const TensorRef& divisor) {
  const Rows rows(logits);
  const auto* ids = target.as<const std::int64_t>();
  const ClassWeights weights(workspace, class_weight, rows.classes);
  auto* losses = workspace.allocate<double>(rows.count());
  const double spread = terms.label_smoothing / static_cast<double>(rows.classes);
  dispatch_floating(logits.dtype, [&](auto element) {
    using T = decltype(element);
    dispatch_stride(rows.places, [&](auto stride) {
      parallel_for(0, rows.count(), rows.grain(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = logits.as<const T>() + rows.first(row);
          const double lse = log_sum_exp_of(x, rows.classes, stride);
          log_sum_exp.as<double>()[row] = lse;
          losses[row] = 0;
          const std::int64_t label = ids[row];
          if (label == terms.ignore_index) continue;
          losses[row] =
              (1 - terms.label_smoothing) * weights.weight[label] * (lse - static_cast<double>(x[label * stride]));
          if (spread > 0) {
            double smooth = 0;
            for (std::int64_t k = 0; k < rows.classes; ++k) {
              smooth += weights.weight[k] * (lse - static_cast<double>(x[k * stride]));
            }
            losses[row] += spread * smooth;
          }
        }
      });
    });
    double counted = 0;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
      if (ids[row] != terms.ignore_index) counted += weights.weight[ids[row]];
    }
    // Nothing counts: divided by infinity, the loss and its gradient are 0.
    const double by = !terms.reduction.average ? 1 : counted != 0 ? counted : std::numeric_limits<double>::infinity();
    divisor.as<double>()[0] = by;
    write_losses(losses, rows.count(), terms.reduction, by, y.as<T>());
  });
}

void cross_entropy_backward(Workspace& workspace, const TensorRef& gy, const TensorRef& logits, const TensorRef& target,
                            const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& log_sum_exp,
                            const TensorRef& divisor, const TensorRef& gx) {
  const Rows rows(logits);
  const auto* ids = target.as<const std::int64_t>();
  const ClassWeights weights(workspace, class_weight, rows.classes);
  const double spread = terms.label_smoothing / static_cast<double>(rows.classes);
  dispatch_floating(logits.dtype, [&](auto element) {
    using T = decltype(element);
    dispatch_stride(rows.places, [&](auto stride) {
      parallel_for(0, rows.count(), rows.grain(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = logits.as<const T>() + rows.first(row);
          T* to = gx.as<T>() + rows.first(row);
          const std::int64_t label = ids[row];
          if (label == terms.ignore_index) {
            for (std::int64_t k = 0; k < rows.classes; ++k) to[k * stride] = 0;
            continue;
          }
          const double g = static_cast<double>(gy.as<const T>()[terms.reduction.reduce ? 0 : row]);
          const double scale = g / divisor.as<const double>()[0];
          const double lse = log_sum_exp.as<const double>()[row];
          const double own = (1 - terms.label_smoothing) * weights.weight[label];
          const double mass = own + spread * weights.sum;  // of the smoothed, weighted target
          const T factor = static_cast<T>(mass * scale), share = static_cast<T>(spread * scale);
          for (std::int64_t k = 0; k < rows.classes; ++k) {
            const T p = math::exp(static_cast<T>(static_cast<double>(x[k * stride]) - lse));
            to[k * stride] = p * factor - static_cast<T>(weights.weight[k]) * share;
          }
          // In f64, where a sure prediction cancels its target.
          const double p = std::exp(static_cast<double>(x[label * stride]) - lse);
          to[label * stride] = static_cast<T>((mass * p - own - spread * weights.weight[label]) * scale);
        }
      });
    });
  });
}

// t' of class k: the given distribution, smoothed, times the class's weight.
template <class T>
double soft_target(T given, double smoothing, double spread, double weight) {
  return ((1 - smoothing) * static_cast<double>(given) + spread) * weight;
}

// mass·e^log_p - wanted. Where a prediction is nearly sure, what both have in common cancels first, and what is left is
// formed from e^log_p - 1.
template <class T>
POLYGRAD_INLINE double surplus(T log_p, double mass, double wanted) {
  const double sure = mass * static_cast<double>(math::expm1(log_p)) + (mass - wanted);
  const double unsure = mass * static_cast<double>(math::exp(log_p)) - wanted;
  return log_p > T(-0.5) ? sure : unsure;
}

double row_divisor(const Rows& rows, const LossReduction& reduction) {
  return reduction.average ? static_cast<double>(std::max<std::int64_t>(1, rows.count())) : 1;
}

void cross_entropy_soft(Workspace& workspace, const TensorRef& logits, const TensorRef& target,
                        const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& y,
                        const TensorRef& log_sum_exp) {
  const Rows rows(logits);
  const ClassWeights weights(workspace, class_weight, rows.classes);
  auto* losses = workspace.allocate<double>(rows.count());
  const double spread = terms.label_smoothing / static_cast<double>(rows.classes);
  dispatch_floating(logits.dtype, [&](auto element) {
    using T = decltype(element);
    dispatch_stride(rows.places, [&](auto stride) {
      parallel_for(0, rows.count(), rows.grain(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = logits.as<const T>() + rows.first(row);
          const T* t = target.as<const T>() + rows.first(row);
          const double lse = log_sum_exp_of(x, rows.classes, stride);
          double loss = 0;
          for (std::int64_t k = 0; k < rows.classes; ++k) {
            const double wanted = soft_target(t[k * stride], terms.label_smoothing, spread, weights.weight[k]);
            if (wanted != 0) loss += wanted * (lse - static_cast<double>(x[k * stride]));
          }
          log_sum_exp.as<double>()[row] = lse;
          losses[row] = loss;
        }
      });
    });
    write_losses(losses, rows.count(), terms.reduction, row_divisor(rows, terms.reduction), y.as<T>());
  });
}

void cross_entropy_soft_backward(Workspace& workspace, const TensorRef& gy, const TensorRef& logits,
                                 const TensorRef& target, const TensorRef& class_weight, const CrossEntropyTerms& terms,
                                 const TensorRef& log_sum_exp, const TensorRef& gx) {
  const Rows rows(logits);
  const ClassWeights weights(workspace, class_weight, rows.classes);
  const double spread = terms.label_smoothing / static_cast<double>(rows.classes);
  const double divisor = row_divisor(rows, terms.reduction);
  dispatch_floating(logits.dtype, [&](auto element) {
    using T = decltype(element);
    dispatch_stride(rows.places, [&](auto stride) {
      parallel_for(0, rows.count(), rows.grain(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* x = logits.as<const T>() + rows.first(row);
          const T* t = target.as<const T>() + rows.first(row);
          T* to = gx.as<T>() + rows.first(row);
          const double lse = log_sum_exp.as<const double>()[row];
          const double scale = static_cast<double>(gy.as<const T>()[terms.reduction.reduce ? 0 : row]) / divisor;
          double mass = 0;
          for (std::int64_t k = 0; k < rows.classes; ++k) {
            mass += soft_target(t[k * stride], terms.label_smoothing, spread, weights.weight[k]);
          }
          for (std::int64_t k = 0; k < rows.classes; ++k) {
            const double wanted = soft_target(t[k * stride], terms.label_smoothing, spread, weights.weight[k]);
            const T log_p = static_cast<T>(static_cast<double>(x[k * stride]) - lse);
            to[k * stride] = static_cast<T>(surplus(log_p, mass, wanted) * scale);
          }
        }
      });
    });
  });
}

void mse(Workspace& workspace, const TensorRef& x, const TensorRef& y, const LossReduction& reduction,
         const TensorRef& out) {
  const std::int64_t n = x.numel(), chunks = (n + kChunk - 1) / kChunk;
  dispatch_floating(x.dtype, [&](auto element) {
    using T = decltype(element);
    const T *a = x.as<const T>(), *b = y.as<const T>();
    T* to = out.as<T>();
    if (!reduction.reduce) {
      parallel_for(0, n, kChunk, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) to[i] = (a[i] - b[i]) * (a[i] - b[i]);
      });
      return;
    }
    auto* partial = workspace.allocate<double>(chunks);
    parallel_for(0, n, kChunk, [=](std::int64_t begin, std::int64_t end) {
      double sum[kLanes] = {};
      const std::int64_t whole = begin + (end - begin) / kLanes * kLanes;
      for (std::int64_t i = begin; i < whole; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
          const double difference = static_cast<double>(a[i + lane]) - static_cast<double>(b[i + lane]);
          sum[lane] += difference * difference;
        }
      }
      for (std::int64_t i = whole; i < end; ++i) {
        const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        sum[0] += difference * difference;
      }
      double total = 0;
      for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
      partial[begin / kChunk] = total;
    });
    double total = 0;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) total += partial[chunk];
    to[0] = static_cast<T>(reduction.average ? total / static_cast<double>(std::max<std::int64_t>(1, n)) : total);
  });
}

void mse_backward(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& y,
                  const LossReduction& reduction, double factor, const TensorRef& gx) {
  const std::int64_t n = x.numel();
  dispatch_floating(x.dtype, [&](auto element) {
    using T = decltype(element);
    const T *a = x.as<const T>(), *b = y.as<const T>(), *upstream = g.as<const T>();
    T* to = gx.as<T>();
    const T twice = static_cast<T>(2 * factor / (reduction.average ? static_cast<double>(n) : 1));
    parallel_for(0, n, kChunk, [=](std::int64_t begin, std::int64_t end) {
      if (reduction.reduce) {
        const T scale = twice * upstream[0];
        for (std::int64_t i = begin; i < end; ++i) to[i] = (a[i] - b[i]) * scale;
      } else {
        for (std::int64_t i = begin; i < end; ++i) to[i] = (a[i] - b[i]) * (upstream[i] * twice);
      }
    });
  });
}

}  // namespace

constinit const LossKernels cpu_loss_kernels = {
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
    .cross_entropy_soft = cross_entropy_soft,
    .cross_entropy_soft_backward = cross_entropy_soft_backward,
    .mse = mse,
    .mse_backward = mse_backward,
};

}  // namespace polygrad
