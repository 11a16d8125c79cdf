// Layer normalisation on the CPU: one pass over memory each way; a row's own passes run in cache (norm_rows.h).
//
// The gradients of weight and bias are summed in a fixed number of groups of rows, then over the groups.
#include "ops/kernels/norm.h"

#include <algorithm>
#include <type_traits>

#include "engine/bfloat16.h"
#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/cpu/norm_rows.h"

namespace polygrad {
namespace {

constexpr std::int64_t kGrain = 8192;   // elements in a task of the forward, at least
constexpr std::int64_t kGroups = 32;    // groups of rows in the backward, at most
constexpr std::int64_t kMinRows = 16;   // rows in a group, at least
constexpr std::int64_t kWideRows = 16;  // of a bf16 matrix that are f32 at a time

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void layer_norm(Workspace&, const TensorRef& x, const TensorRef& weight, const TensorRef& bias, double eps,
                const TensorRef& y, const TensorRef& mean, const TensorRef& rstd) {
  dispatch_floating(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t rows = x.sizes[0], n = x.sizes[1];
    if (rows == 0 || n == 0) return;
    const bool narrow = y.dtype == DType::bf16;
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / n);
    parallel_for(0, rows, grain, [&](std::int64_t begin, std::int64_t end) {
      Workspace own;
      T* result = narrow ? own.allocate<T>((end - begin) * n) : y.as<T>() + begin * n;
      cpu::layer_norm_rows(x.as<T>() + begin * n, end - begin, n, weight.as<T>(), bias.as<T>(), eps, result,
                           mean.as<double>() + begin, rstd.as<double>() + begin);
      if constexpr (std::is_same_v<T, float>) {
        if (narrow) cpu::round_row(result, y.as<BFloat16>() + begin * n, (end - begin) * n);
      }
    });
  });
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
    double* partial = parameters ? workspace.allocate<double>(groups * 2 * n) : nullptr;  // dweight, dbias of a group
    const bool narrow = g.dtype == DType::bf16;
    parallel_for(0, groups, 1, [&](std::int64_t first, std::int64_t last) {
      Workspace own;
      T* wide = narrow ? own.allocate<T>(kWideRows * n) : nullptr;
      for (std::int64_t group = first; group < last; ++group) {
        double* sums = parameters ? partial + group * 2 * n : nullptr;
        if (parameters) std::fill_n(sums, 2 * n, 0.0);
        const std::int64_t end = std::min(rows, (group + 1) * step);
        for (std::int64_t begin = group * step, count = 0; begin < end; begin += count) {
          count = narrow ? std::min(kWideRows, end - begin) : end - begin;
          const T* upper = narrow ? wide : g.as<T>() + begin * n;
          if constexpr (std::is_same_v<T, float>) {
            if (narrow) widen(g.as<BFloat16>() + begin * n, wide, count * n);
          }
          cpu::layer_norm_rows_backward<T>(upper, x.as<T>() + begin * n, count, n, weight.as<T>(),
                                           mean.as<double>() + begin, rstd.as<double>() + begin, nullptr,
                                           dx.present() ? dx.as<T>() + begin * n : nullptr, sums,
                                           parameters ? sums + n : nullptr);
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
