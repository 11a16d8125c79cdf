#include "ops/cpu/row_blocks.h"

#include <algorithm>

#include "engine/bfloat16.h"
#include "engine/parallel.h"
#include "ops/cpu/drop_path.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/norm_rows.h"

namespace polygrad::cpu {
namespace {

constexpr std::int64_t kBlockElements = 1 << 18;  // 1 MiB of f32
constexpr std::int64_t kMinBlock = 64, kMaxBlock = 256;
constexpr std::int64_t kRound = 16;
constexpr std::int64_t kMinTail = 16;
constexpr std::int64_t kGroupRows = 512;
constexpr std::int64_t kMaxGroups = 16;
constexpr std::int64_t kTile = 16;  // of a transposition
constexpr std::int64_t kRowsWorthTurning = 1024;
constexpr std::int64_t kGrain = 1 << 14;  // elements of a task that adds groups

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

RowPlan plan_rows(std::int64_t rows, std::int64_t width) {
  const std::int64_t fitting = kBlockElements / std::max<std::int64_t>(1, width) / kRound * kRound;
  RowPlan plan{rows, std::clamp(fitting, kMinBlock, kMaxBlock), 0, 1};
  plan.blocks = rows == 0 ? 0 : std::max<std::int64_t>(1, ceil_div(rows - kMinTail + 1, plan.block));
  plan.groups = std::clamp<std::int64_t>(rows / kGroupRows, 1, std::clamp<std::int64_t>(plan.blocks, 1, kMaxGroups));
  return plan;
}

template <class T>
TurnedWeight<T>::TurnedWeight(Workspace& workspace, const TensorRef& weight, const RowPlan& plan)
    : weight_(weight.as<const T>()),
      in_(weight.sizes[1]),
      out_(weight.sizes[0]),
      turned_(plan.rows >= kRowsWorthTurning) {
  if (!turned_) return;
  const T* from = weight_;
  T* to = workspace.allocate<T>(in_ * out_);
  parallel_for(0, ceil_div(in_, kTile), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t col = tile * kTile, width = std::min(kTile, in_ - col);
      for (std::int64_t row = 0; row < out_; row += kTile) {
        const std::int64_t height = std::min(kTile, out_ - row);
        for (std::int64_t j = 0; j < width; ++j) {
          for (std::int64_t i = 0; i < height; ++i) to[(col + j) * out_ + row + i] = from[(row + i) * in_ + col + j];
        }
      }
    }
  });
  weight_ = to;
}

template <class T>
void TurnedWeight<T>::multiply(std::int64_t rows, const T* x, T* y) const {
  gemm_serial<T>(false, !turned_, rows, out_, in_, T(1), x, in_, weight_, turned_ ? out_ : in_, T(0), y, out_);
}

template <class T>
void normalise_block(const RowNorm& norm, RowRange rows, T* normalised) {
  const std::int64_t n = norm.x.sizes[1];
  layer_norm_rows(norm.x.as<const T>() + rows.begin * n, rows.count, n, norm.weight.as<const T>(),
                  norm.bias.as<const T>(), norm.eps, normalised, norm.mean.as<double>() + rows.begin,
                  norm.rstd.as<double>() + rows.begin);
}

template <class T>
void normalise_block_again(const RowNorm& norm, RowRange rows, T* normalised) {
  const std::int64_t n = norm.x.sizes[1];
  layer_norm_rows_again(norm.x.as<const T>() + rows.begin * n, rows.count, n, norm.weight.as<const T>(),
                        norm.bias.as<const T>(), norm.mean.as<const double>() + rows.begin,
                        norm.rstd.as<const double>() + rows.begin, normalised);
}

template <class T>
GroupSums<T>::GroupSums(Workspace& workspace, const TensorRef& result, std::int64_t groups)
    : result_(result.as<T>()), numel_(result.present() ? result.numel() : 0), groups_(groups) {
  if (result_ != nullptr && groups > 1) parts_ = workspace.allocate<T>((groups - 1) * numel_);
}

template <class T>
void GroupSums<T>::add_up(bool no_rows) const {
  if (result_ == nullptr) return;
  parallel_for(0, numel_, kGrain, [&](std::int64_t begin, std::int64_t end) {
    if (no_rows) std::fill(result_ + begin, result_ + end, T(0));
    for (std::int64_t group = 1; group < groups_; ++group) {
      const T* __restrict part = of(group);
      T* __restrict total = result_;
      for (std::int64_t i = begin; i < end; ++i) total[i] += part[i];
    }
  });
}

template <class T>
GroupVectorSums<T>::GroupVectorSums(Workspace& workspace, const TensorRef& result, std::int64_t size,
                                    std::int64_t groups, bool summed)
    : result_(result.as<T>()), size_(size), groups_(groups) {
  if (result_ == nullptr && !summed) return;
  sums_ = workspace.allocate<double>(groups * size);
  std::fill(sums_, sums_ + groups * size, 0.0);
}

template <class T>
void GroupVectorSums<T>::add_up() const {
  for (std::int64_t j = 0; result_ != nullptr && j < size_; ++j) {
    double total = 0;
    for (std::int64_t group = 0; group < groups_; ++group) total += sums_[group * size_ + j];
    result_[j] = static_cast<T>(total);
  }
}

template <class T>
NormBackward<T>::NormBackward(Workspace& workspace, const RowNorm& norm, const RowNormGradients& gradients,
                              const RowPlan& plan)
    : norm_(norm),
      grad_x_(gradients.x.as<T>()),
      weight_sums_(workspace, gradients.weight, norm.x.sizes[1], plan.groups, gradients.bias.present()),
      bias_sums_(workspace, gradients.bias, norm.x.sizes[1], plan.groups, gradients.weight.present()) {}

template <class T>
bool NormBackward<T>::wanted() const {
  return grad_x_ != nullptr || weight_sums_.of(0) != nullptr || bias_sums_.of(0) != nullptr;
}

template <class T>
void NormBackward<T>::run(std::int64_t group, RowRange rows, const T* upper, const T* add) const {
  const std::int64_t n = norm_.x.sizes[1];
  layer_norm_rows_backward(upper, norm_.x.as<const T>() + rows.begin * n, rows.count, n, norm_.weight.as<const T>(),
                           norm_.mean.as<const double>() + rows.begin, norm_.rstd.as<const double>() + rows.begin, add,
                           grad_x_ != nullptr ? grad_x_ + rows.begin * n : nullptr, weight_sums_.of(group),
                           bias_sums_.of(group));
}

template <class T>
void NormBackward<T>::add_up() const {
  weight_sums_.add_up();
  bias_sums_.add_up();
}

template <class T>
void add_column_sums(const T* x, std::int64_t rows, std::int64_t cols, double* sums, T* scratch) {
  if (sums == nullptr) return;
  T* __restrict total = scratch;
  std::fill(total, total + cols, T(0));
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {  // four rows a pass: a quarter of the loads and stores of the sums
    const T* __restrict a = x + i * cols, * __restrict b = a + cols, * __restrict c = b + cols, * __restrict d = c + cols;
    for (std::int64_t j = 0; j < cols; ++j) total[j] += (a[j] + b[j]) + (c[j] + d[j]);
  }
  for (; i < rows; ++i) {
    const T* __restrict row = x + i * cols;
    for (std::int64_t j = 0; j < cols; ++j) total[j] += row[j];
  }
  for (std::int64_t j = 0; j < cols; ++j) sums[j] += static_cast<double>(total[j]);
}

void add_column_sums(const BFloat16* x, std::int64_t rows, std::int64_t cols, double* sums, float* scratch) {
  if (sums == nullptr) return;
  float* __restrict total = scratch;
  std::fill(total, total + cols, 0.0f);
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    const BFloat16* __restrict a = x + i * cols, * __restrict b = a + cols, * __restrict c = b + cols, * __restrict d = c + cols;
    for (std::int64_t j = 0; j < cols; ++j) total[j] += (widen(a[j]) + widen(b[j])) + (widen(c[j]) + widen(d[j]));
  }
  for (; i < rows; ++i) {
    const BFloat16* __restrict row = x + i * cols;
    for (std::int64_t j = 0; j < cols; ++j) total[j] += widen(row[j]);
  }
  for (std::int64_t j = 0; j < cols; ++j) sums[j] += static_cast<double>(total[j]);
}

template <class T>
void add_bias_row(const T* row, const T* bias, std::int64_t cols, T* sum) {
  if (bias == nullptr) {
    if (sum != row) std::copy(row, row + cols, sum);
    return;
  }
#pragma GCC ivdep
  for (std::int64_t j = 0; j < cols; ++j) sum[j] = row[j] + bias[j];
}

template <class T>
T* branch_factors(Workspace& workspace, const BranchScale& scale, std::int64_t rows) {
  if (scale.stream.threshold == 0) return nullptr;
  const std::int64_t samples = rows / scale.rows_per_sample;
  T* factors = workspace.allocate<T>(samples);
  for (std::int64_t b = 0; b < samples; ++b) {
    factors[b] = keeps_sample(scale.stream, b) ? static_cast<T>(scale.stream.scale) : T(0);
  }
  return factors;
}

template <class T>
void add_branch(const T* residual, const T* branch, const T* bias, const T* factors, const BranchScale& scale,
                RowRange rows, std::int64_t cols, T* y) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const T* left = residual + i * cols;
    const T* right = branch + i * cols;
    T* to = y + i * cols;
    if (factors == nullptr) {
      if (bias == nullptr) {
        for (std::int64_t j = 0; j < cols; ++j) to[j] = left[j] + right[j];
      } else {
        for (std::int64_t j = 0; j < cols; ++j) to[j] = left[j] + (right[j] + bias[j]);
      }
      continue;
    }
    const T factor = factors[(rows.begin + i) / scale.rows_per_sample];
    if (factor == T(0)) {  // dropped, whatever the branch holds
      for (std::int64_t j = 0; j < cols; ++j) to[j] = left[j];
    } else if (bias == nullptr) {
      for (std::int64_t j = 0; j < cols; ++j) to[j] = left[j] + factor * right[j];
    } else {
      for (std::int64_t j = 0; j < cols; ++j) to[j] = left[j] + factor * (right[j] + bias[j]);
    }
  }
}

template <class T>
const T* scaled_gradient(const T* g, const T* factors, const BranchScale& scale, RowRange rows, std::int64_t cols,
                         T* buffer) {
  if (factors == nullptr) return g;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const T factor = factors[(rows.begin + i) / scale.rows_per_sample];
    T* to = buffer + i * cols;
    if (factor == T(0)) {
      std::fill(to, to + cols, T(0));
    } else {
      for (std::int64_t j = 0; j < cols; ++j) to[j] = factor * g[i * cols + j];
    }
  }
  return buffer;
}

#define POLYGRAD_INSTANTIATE(T)                                                                                        \
  template class TurnedWeight<T>;                                                                                      \
  template void normalise_block<T>(const RowNorm&, RowRange, T*);                                                      \
  template void normalise_block_again<T>(const RowNorm&, RowRange, T*);                                                \
  template class GroupSums<T>;                                                                                         \
  template class GroupVectorSums<T>;                                                                                   \
  template class NormBackward<T>;                                                                                      \
  template void add_column_sums<T>(const T*, std::int64_t, std::int64_t, double*, T*);                                 \
  template void add_bias_row<T>(const T*, const T*, std::int64_t, T*);                                                 \
  template T* branch_factors<T>(Workspace&, const BranchScale&, std::int64_t);                                         \
  template void add_branch<T>(const T*, const T*, const T*, const T*, const BranchScale&, RowRange, std::int64_t, T*); \
  template const T* scaled_gradient<T>(const T*, const T*, const BranchScale&, RowRange, std::int64_t, T*);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu
