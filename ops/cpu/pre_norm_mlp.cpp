// The MLP half of a transformer block, x + scale · fc2(gelu(fc1(norm(x)))), in blocks of rows.
//
// Where this stands: beside pre_norm.cpp, which has the table. A block's hidden rows (four times as wide as x) are
// made, activated and multiplied away in the cache. Of all that lies between x and y the forward stores gelu's
// argument; the backward gets gelu's value and derivative from it in one sweep, and norm(x) from x.
//
//   forward   h = gelu(norm(x) W1ᵀ + b1)          y  = x + s · (h W2ᵀ + b2)
//   backward  G = s · g                           dW2 += Gᵀ h            db2 += Σ G
//             dpre = (G W2) ∘ gelu'(pre)          dW1 += dpreᵀ norm(x)   db1 += Σ dpre
//             dx = g + norm'(dpre W1)
#include "ops/cpu/pre_norm_mlp.h"

#include "engine/parallel.h"
#include "ops/cpu/gelu_block.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/row_blocks.h"

namespace polygrad::cpu {
namespace {

RowPlan plan_mlp(const RowNorm& norm, const RowLinear& fc1) {
  return plan_rows(norm.x.sizes[0], 2 * norm.x.sizes[1] + 2 * fc1.weight.sizes[0]);
}

// h <- gelu(h + bias); pre, where given, keeps the sum.
template <class T>
void activate(T* h, std::int64_t rows, std::int64_t hidden, const T* bias, T* pre) {
  for (std::int64_t i = 0; i < rows; ++i) {  // row by row: it stays in the L1 cache between the two
    T* row = h + i * hidden;
    T* sum = pre != nullptr ? pre + i * hidden : row;
    add_bias_row(row, bias, hidden, sum);
    gelu_block(sum, row, hidden);
  }
}

}  // namespace

template <class T>
void mlp_forward(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                 const BranchScale& scale, const TensorRef& pre, const TensorRef& y) {
  const std::int64_t dim = norm.x.sizes[1], hidden = fc1.weight.sizes[0];
  const RowPlan plan = plan_mlp(norm, fc1);
  const TurnedWeight<T> weight1(workspace, fc1.weight, plan), weight2(workspace, fc2.weight, plan);
  const T* factors = branch_factors<T>(workspace, scale, plan.rows);
  parallel_for(0, plan.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    T* normalised = scratch.allocate<T>(plan.largest_block() * dim);
    T* h = scratch.allocate<T>(plan.largest_block() * hidden);
    for (std::int64_t block = begin; block < end; ++block) {
      const RowRange rows = plan.rows_of(block);
      normalise_block(norm, rows, normalised);
      weight1.multiply(rows.count, normalised, h);
      activate(h, rows.count, hidden, fc1.bias.as<const T>(),
               pre.present() ? pre.as<T>() + rows.begin * hidden : nullptr);
      T* result = y.as<T>() + rows.begin * dim;
      weight2.multiply(rows.count, h, result);
      add_branch(norm.x.as<const T>() + rows.begin * dim, result, fc2.bias.as<const T>(), factors, scale, rows, dim,
                 result);
    }
  });
}

template <class T>
void mlp_backward(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                  const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                  const RowNormGradients& norm_gradients, const RowLinearGradients& fc1_gradients,
                  const RowLinearGradients& fc2_gradients) {
  const std::int64_t dim = norm.x.sizes[1], hidden = fc1.weight.sizes[0];
  const RowPlan plan = plan_mlp(norm, fc1);
  const GroupSums<T> weight1_sums(workspace, fc1_gradients.weight, plan.groups);
  const GroupSums<T> weight2_sums(workspace, fc2_gradients.weight, plan.groups);
  const GroupVectorSums<T> bias1_sums(workspace, fc1_gradients.bias, hidden, plan.groups);
  const GroupVectorSums<T> bias2_sums(workspace, fc2_gradients.bias, dim, plan.groups);
  const NormBackward<T> norm_backward(workspace, norm, norm_gradients, plan);
  const T* factors = branch_factors<T>(workspace, scale, plan.rows);
  parallel_for(0, plan.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    T* scaled = factors != nullptr ? scratch.allocate<T>(plan.largest_block() * dim) : nullptr;
    T* normalised = scratch.allocate<T>(plan.largest_block() * dim);
    T* upper = scratch.allocate<T>(plan.largest_block() * dim);  // the gradient of norm(x)
    T* h = scratch.allocate<T>(plan.largest_block() * hidden);
    T* d = scratch.allocate<T>(plan.largest_block() * hidden);  // the gradient of h, then of pre
    T* sums = scratch.allocate<T>(hidden > dim ? hidden : dim);
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::int64_t block = plan.first_block(group); block < plan.first_block(group + 1); ++block) {
        const RowRange rows = plan.rows_of(block);
        const T beta = block == plan.first_block(group) ? T(0) : T(1);
        const T* residual = grad.as<const T>() + rows.begin * dim;
        const T* g = scaled_gradient(residual, factors, scale, rows, dim, scaled);
        gemm_serial<T>(false, false, rows.count, hidden, dim, T(1), g, dim, fc2.weight.as<const T>(), hidden, T(0), d,
                       hidden);
        gelu_backward_block(pre.as<const T>() + rows.begin * hidden, d, d, h, rows.count * hidden);
        if (weight2_sums.wanted()) {
          gemm_serial<T>(true, false, dim, hidden, rows.count, T(1), g, dim, h, hidden, beta, weight2_sums.of(group),
                         hidden);
        }
        add_column_sums(g, rows.count, dim, bias2_sums.of(group), sums);
        add_column_sums(d, rows.count, hidden, bias1_sums.of(group), sums);
        if (weight1_sums.wanted()) {
          normalise_block_again(norm, rows, normalised);
          gemm_serial<T>(true, false, hidden, dim, rows.count, T(1), d, hidden, normalised, dim, beta,
                         weight1_sums.of(group), dim);
        }
        if (!norm_backward.wanted()) continue;
        gemm_serial<T>(false, false, rows.count, dim, hidden, T(1), d, hidden, fc1.weight.as<const T>(), dim, T(0),
                       upper, dim);
        norm_backward.run(group, rows, upper, residual);
      }
    }
  });
  weight1_sums.add_up(plan.blocks == 0);
  weight2_sums.add_up(plan.blocks == 0);
  bias1_sums.add_up();
  bias2_sums.add_up();
  norm_backward.add_up();
}

#define POLYGRAD_INSTANTIATE(T)                                                                                     \
  template void mlp_forward<T>(Workspace&, const RowNorm&, const RowLinear&, const RowLinear&, const BranchScale&,  \
                               const TensorRef&, const TensorRef&);                                                 \
  template void mlp_backward<T>(Workspace&, const RowNorm&, const RowLinear&, const RowLinear&, const BranchScale&, \
                                const TensorRef&, const TensorRef&, const RowNormGradients&,                        \
                                const RowLinearGradients&, const RowLinearGradients&);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu
