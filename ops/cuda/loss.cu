// The loss family on a GPU: a warp takes a row of logits. Row losses are added in row order, by one block, in f64;
// nothing comes back to the host.
#include "ops/kernels/loss.h"

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/math.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256;

// Logits (N, K, S) and the rows in them.
struct Rows {
  std::int64_t batch, classes, places;
  explicit Rows(const TensorRef& logits) : batch(logits.sizes[0]), classes(logits.sizes[1]), places(logits.sizes[2]) {}
  POLYGRAD_INLINE std::int64_t count() const { return batch * places; }
  // Where class 0 of a row lies; the next class is `places` elements further on.
  POLYGRAD_INLINE std::int64_t first(std::int64_t row) const { return row / places * classes * places + row % places; }
  Grid grid() const { return {.x = ceil_div(count(), kThreads / kWarp)}; }
};

__device__ __forceinline__ std::int64_t warp_index() {
  return static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
}
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }

template <class C>
__device__ double log_sum_exp_of(const Input<C>& x, std::int64_t first, const Rows& rows) {
  C largest = -math::from_bits(0x7f800000u);
  for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
    largest = math::at_least(x[first + k * rows.places], largest);
  }
  largest = warp_reduce(largest, Largest());
  double sum = 0;
  for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
    sum += static_cast<double>(math::exp(x[first + k * rows.places] - largest));
  }
  return static_cast<double>(largest) + math::log(warp_sum(sum));
}

// What both kinds of target share.
template <class C>
struct Problem {
  Rows rows;
  Input<C> logits, class_weight;  // absent weights are 1
  double smoothing, spread;       // spread: smoothing over all classes
  Problem(const TensorRef& x, const TensorRef& weight, const CrossEntropyTerms& terms)
      : rows(x),
        logits(x),
        class_weight(weight),
        smoothing(terms.label_smoothing),
        spread(terms.label_smoothing / static_cast<double>(rows.classes)) {}
  __device__ __forceinline__ double weight(std::int64_t k) const {
    return class_weight.present() ? static_cast<double>(class_weight[k]) : 1.0;
  }
  __device__ __forceinline__ double logit(std::int64_t first, std::int64_t k) const {
    return static_cast<double>(logits[first + k * rows.places]);
  }
  // All lanes of a warp get the result.
  __device__ double weight_sum() const {
    if (!class_weight.present()) return static_cast<double>(rows.classes);
    double sum = 0;
    for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) sum += weight(k);
    return warp_sum(sum);
  }
};

// --- the sum of the rows' losses -------------------------------------------------------------------------------------

// One block: y[0] = Σ losses / divisor, where the divisor is `divisor`, or the counted rows' weights where it is 0 (and
// infinity where nothing counts, so that loss and gradient are 0). In f64; the divisor is kept for the backward.
template <class C>
__global__ void reduce_kernel(const double* losses, const double* counted, std::int64_t rows, bool reduce,
                              double divisor, Output<C> y, double* kept) {
  double sum = 0, weights = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) {
    sum += losses[row];
    if (counted != nullptr) weights += counted[row];
  }
  sum = block_sum<kThreads>(sum);
  weights = block_sum<kThreads>(weights);
  if (threadIdx.x != 0) return;
  const double infinity = static_cast<double>(math::from_bits(0x7f800000u));
  const double by = divisor != 0 ? divisor : weights != 0 ? weights : infinity;
  if (kept != nullptr) *kept = by;
  if (reduce) y.write(0, static_cast<C>(sum / by));
}

template <class C>
__global__ void write_kernel(const double* losses, std::int64_t rows, Output<C> y) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows) y.write(row, static_cast<C>(losses[row]));
}

template <class C>
void write_losses(const double* losses, const double* counted, std::int64_t rows, const LossReduction& reduction,
                  double divisor, const TensorRef& y, double* kept) {
  if (!reduction.reduce) {
    launch("loss", {.x = ceil_div(rows, kThreads)}, kThreads, 0, write_kernel<C>, losses, rows, Output<C>(y));
  }
  if (reduction.reduce || kept != nullptr) {
    launch("loss", {}, kThreads, 0, reduce_kernel<C>, losses, counted, rows, reduction.reduce, divisor, Output<C>(y),
           kept);
  }
}

// --- class ids ------------------------------------------------------------------------------------------------------

template <class C>
__global__ void ids_kernel(Problem<C> problem, const std::int64_t* ids, std::int64_t ignored, double* log_sum_exp,
                           double* losses, double* counted) {
  const Rows& rows = problem.rows;
  const std::int64_t row = warp_index();
  if (row >= rows.count()) return;
  const std::int64_t first = rows.first(row), label = ids[row];
  const double lse = log_sum_exp_of(problem.logits, first, rows);
  // A label outside the classes was reported by first_outside; nothing is read there.
  const bool counts = label != ignored && label >= 0 && label < rows.classes;
  double smooth = 0;
  if (counts && problem.spread > 0) {
    for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
      smooth += problem.weight(k) * (lse - problem.logit(first, k));
    }
    smooth = warp_sum(smooth);
  }
  if (lane_index() != 0) return;
  const double own = counts ? problem.weight(label) * (lse - problem.logit(first, label)) : 0;
  log_sum_exp[row] = lse;
  losses[row] = (1 - problem.smoothing) * own + problem.spread * smooth;
  counted[row] = counts ? problem.weight(label) : 0;
}

void cross_entropy(Workspace& workspace, const TensorRef& logits, const TensorRef& target,
                   const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& y,
                   const TensorRef& log_sum_exp, const TensorRef& divisor) {
  dispatch_compute(logits.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> problem(logits, class_weight, terms);
    const std::int64_t rows = problem.rows.count();
    double *losses = workspace.allocate<double>(rows), *counted = workspace.allocate<double>(rows);
    launch("cross_entropy", problem.rows.grid(), kThreads, 0, ids_kernel<C>, problem, target.as<const std::int64_t>(),
           terms.ignore_index, log_sum_exp.as<double>(), losses, counted);
    write_losses<C>(losses, counted, rows, terms.reduction, terms.reduction.average ? 0 : 1, y, divisor.as<double>());
  });
}

template <class C>
__global__ void ids_backward_kernel(Problem<C> problem, const std::int64_t* ids, std::int64_t ignored, bool reduced,
                                    Input<C> gy, const double* log_sum_exp, const double* divisor, Output<C> gx) {
  const Rows& rows = problem.rows;
  const std::int64_t row = warp_index();
  if (row >= rows.count()) return;
  const std::int64_t first = rows.first(row), label = ids[row];
  const bool counts = label != ignored && label >= 0 && label < rows.classes;
  const double weight_sum = problem.spread > 0 ? problem.weight_sum() : 0;
  const double scale = static_cast<double>(gy[reduced ? 0 : row]) / *divisor, lse = log_sum_exp[row];
  const double own = counts ? (1 - problem.smoothing) * problem.weight(label) : 0;
  const double mass = own + problem.spread * weight_sum;  // of the smoothed, weighted target
  const C factor = static_cast<C>(mass * scale), share = static_cast<C>(problem.spread * scale);
  for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
    C result = 0;
    if (counts && k == label) {  // in f64, where a sure prediction cancels its target
      const double p = math::exp(problem.logit(first, k) - lse);
      result = static_cast<C>((mass * p - own - problem.spread * problem.weight(k)) * scale);
    } else if (counts) {
      const C p = math::exp(static_cast<C>(problem.logit(first, k) - lse));
      result = p * factor - static_cast<C>(problem.weight(k)) * share;
    }
    gx.write(first + k * rows.places, result);
  }
}

void cross_entropy_backward(Workspace&, const TensorRef& gy, const TensorRef& logits, const TensorRef& target,
                            const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& log_sum_exp,
                            const TensorRef& divisor, const TensorRef& gx) {
  dispatch_compute(logits.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> problem(logits, class_weight, terms);
    launch("cross_entropy_backward", problem.rows.grid(), kThreads, 0, ids_backward_kernel<C>, problem,
           target.as<const std::int64_t>(), terms.ignore_index, terms.reduction.reduce, Input<C>(gy),
           log_sum_exp.as<const double>(), divisor.as<const double>(), Output<C>(gx));
  });
}

// --- distributions --------------------------------------------------------------------------------------------------

// The given distribution, smoothed, times the class's weight.
template <class C>
__device__ __forceinline__ double soft_target(const Problem<C>& problem, C given, std::int64_t k) {
  return ((1 - problem.smoothing) * static_cast<double>(given) + problem.spread) * problem.weight(k);
}

double row_divisor(const Rows& rows, const LossReduction& reduction) {
  return reduction.average && rows.count() > 0 ? static_cast<double>(rows.count()) : 1;
}

template <class C>
__global__ void soft_kernel(Problem<C> problem, Input<C> target, double* log_sum_exp, double* losses) {
  const Rows& rows = problem.rows;
  const std::int64_t row = warp_index();
  if (row >= rows.count()) return;
  const std::int64_t first = rows.first(row);
  const double lse = log_sum_exp_of(problem.logits, first, rows);
  double loss = 0;
  for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
    const double wanted = soft_target(problem, target[first + k * rows.places], k);
    if (wanted != 0) loss += wanted * (lse - problem.logit(first, k));
  }
  loss = warp_sum(loss);
  if (lane_index() != 0) return;
  log_sum_exp[row] = lse;
  losses[row] = loss;
}

void cross_entropy_soft(Workspace& workspace, const TensorRef& logits, const TensorRef& target,
                        const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& y,
                        const TensorRef& log_sum_exp) {
  dispatch_compute(logits.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> problem(logits, class_weight, terms);
    const std::int64_t rows = problem.rows.count();
    double* losses = workspace.allocate<double>(rows);
    launch("cross_entropy_soft", problem.rows.grid(), kThreads, 0, soft_kernel<C>, problem, Input<C>(target),
           log_sum_exp.as<double>(), losses);
    write_losses<C>(losses, nullptr, rows, terms.reduction, row_divisor(problem.rows, terms.reduction), y, nullptr);
  });
}

template <class C>
__global__ void soft_backward_kernel(Problem<C> problem, Input<C> target, bool reduced, double divisor, Input<C> gy,
                                     const double* log_sum_exp, Output<C> gx) {
  const Rows& rows = problem.rows;
  const std::int64_t row = warp_index();
  if (row >= rows.count()) return;
  const std::int64_t first = rows.first(row);
  const double lse = log_sum_exp[row], scale = static_cast<double>(gy[reduced ? 0 : row]) / divisor;
  double mass = 0;
  for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
    mass += soft_target(problem, target[first + k * rows.places], k);
  }
  mass = warp_sum(mass);
  for (std::int64_t k = lane_index(); k < rows.classes; k += kWarp) {
    const double wanted = soft_target(problem, target[first + k * rows.places], k);
    const double p = math::exp(problem.logit(first, k) - lse);  // in f64, where a sure prediction cancels its target
    gx.write(first + k * rows.places, static_cast<C>((mass * p - wanted) * scale));
  }
}

void cross_entropy_soft_backward(Workspace&, const TensorRef& gy, const TensorRef& logits, const TensorRef& target,
                                 const TensorRef& class_weight, const CrossEntropyTerms& terms,
                                 const TensorRef& log_sum_exp, const TensorRef& gx) {
  dispatch_compute(logits.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> problem(logits, class_weight, terms);
    launch("cross_entropy_soft_backward", problem.rows.grid(), kThreads, 0, soft_backward_kernel<C>, problem,
           Input<C>(target), terms.reduction.reduce, row_divisor(problem.rows, terms.reduction), Input<C>(gy),
           log_sum_exp.as<const double>(), Output<C>(gx));
  });
}

// --- mean squared error ----------------------------------------------------------------------------------------------

// (x - y)² as it is, or a block's share of the sum.
template <class C>
__global__ void mse_kernel(Input<C> x, Input<C> y, std::int64_t n, bool reduce, Output<C> out, double* partial) {
  double sum = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const C a = x[i], b = y[i];
    if (reduce) {
      const double difference = static_cast<double>(a) - static_cast<double>(b);
      sum += difference * difference;
    } else {
      out.write(i, (a - b) * (a - b));
    }
  }
  if (!reduce) return;
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

void mse(Workspace& workspace, const TensorRef& x, const TensorRef& y, const LossReduction& reduction,
         const TensorRef& out) {
  constexpr std::int64_t kBlocks = 1024;  // at most: the sum's order depends on the size alone
  const std::int64_t n = x.numel();
  std::int64_t blocks = ceil_div(n, kThreads);
  if (blocks > kBlocks) blocks = kBlocks;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    double* partial = reduction.reduce ? workspace.allocate<double>(blocks) : nullptr;
    launch("mse", {.x = blocks}, kThreads, 0, mse_kernel<C>, Input<C>(x), Input<C>(y), n, reduction.reduce,
           Output<C>(out), partial);
    if (!reduction.reduce) return;
    write_losses<C>(partial, nullptr, blocks, reduction, reduction.average && n > 0 ? static_cast<double>(n) : 1, out,
                    nullptr);
  });
}

template <class C>
__global__ void mse_backward_kernel(Input<C> g, Input<C> x, Input<C> y, std::int64_t n, bool reduced, C twice,
                                    Output<C> gx) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) gx.write(i, (x[i] - y[i]) * (g[reduced ? 0 : i] * twice));
}

void mse_backward(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& y,
                  const LossReduction& reduction, double factor, const TensorRef& gx) {
  const std::int64_t n = x.numel();
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const C twice = static_cast<C>(2 * factor / (reduction.average ? static_cast<double>(n) : 1));
    launch("mse_backward", {.x = ceil_div(n, kThreads)}, kThreads, 0, mse_backward_kernel<C>, Input<C>(g), Input<C>(x),
           Input<C>(y), n, reduction.reduce, twice, Output<C>(gx));
  });
}

constexpr LossKernels kKernels = {
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
    .cross_entropy_soft = cross_entropy_soft,
    .cross_entropy_soft_backward = cross_entropy_soft_backward,
    .mse = mse,
    .mse_backward = mse_backward,
};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const LossKernels& cuda_loss_kernels() { return cuda::kKernels; }

}  // namespace polygrad
