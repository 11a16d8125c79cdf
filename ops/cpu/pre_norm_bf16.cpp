// The pre_norm family in mixed precision: the same blocks of rows as in pre_norm.cpp and pre_norm_mlp.cpp.
//
// What differs is what a product reads: the stream of tokens, its gradient, the norms and all sums are f32; each block
// is rounded in the cache just before it is multiplied, and what only products read is stored as bf16: the projected
// rows, the argument of gelu. Weights come packed. A bias is added inside the product, before the one rounding.
#include "ops/cpu/pre_norm_bf16.h"

#include <algorithm>

#include "engine/parallel.h"
#include "ops/cpu/gelu_block.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/cpu/norm_rows.h"
#include "ops/cpu/row_blocks.h"

namespace polygrad::cpu {
namespace {

constexpr std::int64_t kRowsAtOnce = 16;  // that are normalised in f32 before they are rounded: in the L1 cache

// The plan for rows of which `width` bf16 elements are alive at once.
RowPlan plan_bf16(std::int64_t rows, std::int64_t width) { return plan_rows(rows, (width + 1) / 2); }

// Norms of rows, rounded.
class RoundedNorm {
 public:
  RoundedNorm(Workspace& scratch, const RowNorm& norm)
      : norm_(norm), n_(norm.x.sizes[1]), wide_(scratch.allocate<float>(kRowsAtOnce * n_)) {}

  // Writes mean and rstd.
  void first(RowRange rows, BFloat16* result) const {
    for (std::int64_t i = 0; i < rows.count; i += kRowsAtOnce) {
      const std::int64_t begin = rows.begin + i, count = std::min(kRowsAtOnce, rows.count - i);
      layer_norm_rows(norm_.x.as<const float>() + begin * n_, count, n_, norm_.weight.as<const float>(),
                      norm_.bias.as<const float>(), norm_.eps, wide_, norm_.mean.as<double>() + begin,
                      norm_.rstd.as<double>() + begin);
      round_row(wide_, result + i * n_, count * n_);
    }
  }
  // From mean and rstd.
  void again(RowRange rows, BFloat16* result) const {
    for (std::int64_t i = 0; i < rows.count; i += kRowsAtOnce) {
      const std::int64_t begin = rows.begin + i, count = std::min(kRowsAtOnce, rows.count - i);
      layer_norm_rows_again(norm_.x.as<const float>() + begin * n_, count, n_, norm_.weight.as<const float>(),
                            norm_.bias.as<const float>(), norm_.mean.as<const double>() + begin,
                            norm_.rstd.as<const double>() + begin, wide_);
      round_row(wide_, result + i * n_, count * n_);
    }
  }

 private:
  const RowNorm& norm_;
  std::int64_t n_;
  float* wide_;
};

// gradient (out, in) += gᵀ x; the first block of a group overwrites.
void add_weight_gradient(const BFloat16* g, std::int64_t out, const BFloat16* x, std::int64_t in, std::int64_t rows,
                         bool first, float* gradient) {
  gemm_serial(true, false, out, in, rows, 1.0f, g, out, x, in, first ? 0.0f : 1.0f, gradient, in);
}

}  // namespace

void linear_forward_bf16(const RowNorm& norm, const RowLinear& linear, const TensorRef& y) {
  const std::int64_t in = norm.x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_bf16(norm.x.sizes[0], 3 * in + out);
  parallel_for(0, plan.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const RoundedNorm normalise(scratch, norm);
    BFloat16* normalised = scratch.allocate<BFloat16>(plan.largest_block() * in);
    for (std::int64_t block = begin; block < end; ++block) {
      const RowRange rows = plan.rows_of(block);
      normalise.first(rows, normalised);
      gemm_packed_serial(rows.count, out, in, normalised, in, linear.packed.as<const BFloat16>(),
                         linear.bias.as<const float>(), y.as<BFloat16>() + rows.begin * out, out);
    }
  });
}

void linear_backward_bf16(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& grad,
                          const RowNormGradients& norm_gradients, const RowLinearGradients& linear_gradients) {
  const std::int64_t in = norm.x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_bf16(norm.x.sizes[0], 5 * in + out);
  const GroupSums<float> weight_sums(workspace, linear_gradients.weight, plan.groups);
  const GroupVectorSums<float> bias_sums(workspace, linear_gradients.bias, out, plan.groups);
  const NormBackward<float> norm_backward(workspace, norm, norm_gradients, plan);
  parallel_for(0, plan.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const RoundedNorm normalise(scratch, norm);
    BFloat16* normalised = scratch.allocate<BFloat16>(plan.largest_block() * in);
    float* upper = scratch.allocate<float>(plan.largest_block() * in);  // the gradient of what is normalised
    float* sums = scratch.allocate<float>(out);
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::int64_t block = plan.first_block(group); block < plan.first_block(group + 1); ++block) {
        const RowRange rows = plan.rows_of(block);
        const BFloat16* g = grad.as<const BFloat16>() + rows.begin * out;
        if (weight_sums.wanted()) {
          normalise.again(rows, normalised);
          add_weight_gradient(g, out, normalised, in, rows.count, block == plan.first_block(group),
                              weight_sums.of(group));
        }
        add_column_sums(g, rows.count, out, bias_sums.of(group), sums);
        if (!norm_backward.wanted()) continue;
        gemm_packed_serial(rows.count, in, out, g, out, linear.packed.as<const BFloat16>(), nullptr, 0.0f, upper, in);
        norm_backward.run(group, rows, upper, nullptr);
      }
    }
  });
  weight_sums.add_up(plan.blocks == 0);
  bias_sums.add_up();
  norm_backward.add_up();
}

void residual_forward_bf16(Workspace& workspace, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
                           const BranchScale& scale, const TensorRef& y) {
  const std::int64_t in = x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_bf16(x.sizes[0], in + 4 * out);
  const float* factors = branch_factors<float>(workspace, scale, plan.rows);
  parallel_for(0, plan.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const RowRange rows = plan.rows_of(block);
      float* result = y.as<float>() + rows.begin * out;
      gemm_packed_serial(rows.count, out, in, x.as<const BFloat16>() + rows.begin * in, in,
                         linear.packed.as<const BFloat16>(), nullptr, 0.0f, result, out);
      add_branch(residual.as<const float>() + rows.begin * out, result, linear.bias.as<const float>(), factors, scale,
                 rows, out, result);
    }
  });
}

void residual_backward_bf16(Workspace& workspace, const TensorRef& x, const RowLinear& linear, const BranchScale& scale,
                            const TensorRef& grad, const TensorRef& grad_x, const RowLinearGradients& gradients) {
  const std::int64_t in = x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_bf16(x.sizes[0], 2 * in + 5 * out);
  const GroupSums<float> weight_sums(workspace, gradients.weight, plan.groups);
  const GroupVectorSums<float> bias_sums(workspace, gradients.bias, out, plan.groups);
  const float* factors = branch_factors<float>(workspace, scale, plan.rows);
  const BFloat16* packed = linear.packed.as<const BFloat16>();
  parallel_for(0, plan.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    float* scaled = factors != nullptr ? scratch.allocate<float>(plan.largest_block() * out) : nullptr;
    BFloat16* rounded = scratch.allocate<BFloat16>(plan.largest_block() * out);
    float* sums = scratch.allocate<float>(out);
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::int64_t block = plan.first_block(group); block < plan.first_block(group + 1); ++block) {
        const RowRange rows = plan.rows_of(block);
        const float* g = scaled_gradient(grad.as<const float>() + rows.begin * out, factors, scale, rows, out, scaled);
        round_row(g, rounded, rows.count * out);
        if (weight_sums.wanted()) {
          add_weight_gradient(rounded, out, x.as<const BFloat16>() + rows.begin * in, in, rows.count,
                              block == plan.first_block(group), weight_sums.of(group));
        }
        add_column_sums(g, rows.count, out, bias_sums.of(group), sums);
        if (!grad_x.present()) continue;
        if (grad_x.dtype == DType::bf16) {
          gemm_packed_serial(rows.count, in, out, rounded, out, packed, nullptr,
                             grad_x.as<BFloat16>() + rows.begin * in, in);
        } else {
          gemm_packed_serial(rows.count, in, out, rounded, out, packed, nullptr, 0.0f,
                             grad_x.as<float>() + rows.begin * in, in);
        }
      }
    }
  });
  weight_sums.add_up(plan.blocks == 0);
  bias_sums.add_up();
}

void mlp_forward_bf16(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                      const BranchScale& scale, const TensorRef& pre, const TensorRef& y) {
  const std::int64_t dim = norm.x.sizes[1], hidden = fc1.weight.sizes[0];
  const RowPlan plan = plan_bf16(norm.x.sizes[0], 4 * dim + 2 * hidden);
  const float* factors = branch_factors<float>(workspace, scale, plan.rows);
  parallel_for(0, plan.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const RoundedNorm normalise(scratch, norm);
    BFloat16* normalised = scratch.allocate<BFloat16>(plan.largest_block() * dim);
    BFloat16* h = scratch.allocate<BFloat16>(plan.largest_block() * hidden);
    for (std::int64_t block = begin; block < end; ++block) {
      const RowRange rows = plan.rows_of(block);
      normalise.first(rows, normalised);
      BFloat16* argument = pre.present() ? pre.as<BFloat16>() + rows.begin * hidden : h;
      gemm_packed_serial(rows.count, hidden, dim, normalised, dim, fc1.packed.as<const BFloat16>(),
                         fc1.bias.as<const float>(), argument, hidden);
      gelu_block(argument, h, rows.count * hidden);
      float* result = y.as<float>() + rows.begin * dim;
      gemm_packed_serial(rows.count, dim, hidden, h, hidden, fc2.packed.as<const BFloat16>(), nullptr, 0.0f, result,
                         dim);
      add_branch(norm.x.as<const float>() + rows.begin * dim, result, fc2.bias.as<const float>(), factors, scale, rows,
                 dim, result);
    }
  });
}

void mlp_backward_bf16(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                       const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                       const RowNormGradients& norm_gradients, const RowLinearGradients& fc1_gradients,
                       const RowLinearGradients& fc2_gradients) {
  const std::int64_t dim = norm.x.sizes[1], hidden = fc1.weight.sizes[0];
  const RowPlan plan = plan_bf16(norm.x.sizes[0], 6 * dim + 3 * hidden);
  const GroupSums<float> weight1_sums(workspace, fc1_gradients.weight, plan.groups);
  const GroupSums<float> weight2_sums(workspace, fc2_gradients.weight, plan.groups);
  const GroupVectorSums<float> bias1_sums(workspace, fc1_gradients.bias, hidden, plan.groups);
  const GroupVectorSums<float> bias2_sums(workspace, fc2_gradients.bias, dim, plan.groups);
  const NormBackward<float> norm_backward(workspace, norm, norm_gradients, plan);
  const float* factors = branch_factors<float>(workspace, scale, plan.rows);
  parallel_for(0, plan.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const RoundedNorm normalise(scratch, norm);
    float* scaled = factors != nullptr ? scratch.allocate<float>(plan.largest_block() * dim) : nullptr;
    BFloat16* rounded = scratch.allocate<BFloat16>(plan.largest_block() * dim);
    BFloat16* normalised = scratch.allocate<BFloat16>(plan.largest_block() * dim);
    float* upper = scratch.allocate<float>(plan.largest_block() * dim);  // the gradient of norm(x)
    BFloat16* h = scratch.allocate<BFloat16>(plan.largest_block() * hidden);
    BFloat16* d = scratch.allocate<BFloat16>(plan.largest_block() * hidden);  // the gradient of h, then of pre
    float* sums = scratch.allocate<float>(std::max(hidden, dim));
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::int64_t block = plan.first_block(group); block < plan.first_block(group + 1); ++block) {
        const RowRange rows = plan.rows_of(block);
        const bool first = block == plan.first_block(group);
        const float* residual = grad.as<const float>() + rows.begin * dim;
        const float* g = scaled_gradient(residual, factors, scale, rows, dim, scaled);
        round_row(g, rounded, rows.count * dim);
        gemm_packed_serial(rows.count, hidden, dim, rounded, dim, fc2.packed.as<const BFloat16>(), nullptr, d, hidden);
        gelu_backward_block(pre.as<const BFloat16>() + rows.begin * hidden, d, d, h, rows.count * hidden);
        if (weight2_sums.wanted()) {
          add_weight_gradient(rounded, dim, h, hidden, rows.count, first, weight2_sums.of(group));
        }
        add_column_sums(g, rows.count, dim, bias2_sums.of(group), sums);
        add_column_sums(d, rows.count, hidden, bias1_sums.of(group), sums);
        if (weight1_sums.wanted()) {
          normalise.again(rows, normalised);
          add_weight_gradient(d, hidden, normalised, dim, rows.count, first, weight1_sums.of(group));
        }
        if (!norm_backward.wanted()) continue;
        gemm_packed_serial(rows.count, dim, hidden, d, hidden, fc1.packed.as<const BFloat16>(), nullptr, 0.0f, upper,
                           dim);
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

}  // namespace polygrad::cpu
