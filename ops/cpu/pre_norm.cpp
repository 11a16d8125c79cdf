// CPU kernels of the pre_norm family: norm + linear, and linear + residual. (The MLP is in pre_norm_mlp.cpp.)
//
// In bf16: pre_norm_bf16.cpp.
// How it works: row_blocks.h. Each block of rows is normalised into a buffer, multiplied from there, and finished where
// it lies; the weight is turned once, so that forward products read it by rows.
#include "ops/kernels/pre_norm.h"

#include "engine/parallel.h"
#include "ops/cpu/floating.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/pre_norm_bf16.h"
#include "ops/cpu/pre_norm_mlp.h"
#include "ops/cpu/row_blocks.h"

namespace polygrad {
namespace cpu {
namespace {

template <class T>
void linear_forward(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& y) {
  const std::int64_t in = norm.x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_rows(norm.x.sizes[0], 2 * in + out);
  const TurnedWeight<T> weight(workspace, linear.weight, plan);
  parallel_for(0, plan.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    T* normalised = scratch.allocate<T>(plan.largest_block() * in);
    for (std::int64_t block = begin; block < end; ++block) {
      const RowRange rows = plan.rows_of(block);
      normalise_block(norm, rows, normalised);
      T* result = y.as<T>() + rows.begin * out;
      weight.multiply(rows.count, normalised, result);
      for (std::int64_t i = 0; i < rows.count; ++i) {
        add_bias_row(result + i * out, linear.bias.as<const T>(), out, result + i * out);
      }
    }
  });
}

template <class T>
void linear_backward(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& grad,
                     const RowNormGradients& norm_gradients, const RowLinearGradients& linear_gradients) {
  const std::int64_t in = norm.x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_rows(norm.x.sizes[0], 2 * in + out);
  const GroupSums<T> weight_sums(workspace, linear_gradients.weight, plan.groups);
  const GroupVectorSums<T> bias_sums(workspace, linear_gradients.bias, out, plan.groups);
  const NormBackward<T> norm_backward(workspace, norm, norm_gradients, plan);
  parallel_for(0, plan.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    T* normalised = scratch.allocate<T>(plan.largest_block() * in);
    T* upper = scratch.allocate<T>(plan.largest_block() * in);  // the gradient of what is normalised
    T* sums = scratch.allocate<T>(out);
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::int64_t block = plan.first_block(group); block < plan.first_block(group + 1); ++block) {
        const RowRange rows = plan.rows_of(block);
        const T* g = grad.as<const T>() + rows.begin * out;
        if (weight_sums.wanted()) {  // gᵀ norm(x)
          const T beta = block == plan.first_block(group) ? T(0) : T(1);
          normalise_block_again(norm, rows, normalised);
          gemm_serial<T>(true, false, out, in, rows.count, T(1), g, out, normalised, in, beta, weight_sums.of(group),
                         in);
        }
        add_column_sums(g, rows.count, out, bias_sums.of(group), sums);
        if (!norm_backward.wanted()) continue;
        gemm_serial<T>(false, false, rows.count, in, out, T(1), g, out, linear.weight.as<const T>(), in, T(0), upper,
                       in);
        norm_backward.run(group, rows, upper, nullptr);
      }
    }
  });
  weight_sums.add_up(plan.blocks == 0);
  bias_sums.add_up();
  norm_backward.add_up();
}

template <class T>
void residual_forward(Workspace& workspace, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
                      const BranchScale& scale, const TensorRef& y) {
  const std::int64_t in = x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_rows(x.sizes[0], in + 2 * out);
  const TurnedWeight<T> weight(workspace, linear.weight, plan);
  const T* factors = branch_factors<T>(workspace, scale, plan.rows);
  parallel_for(0, plan.blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const RowRange rows = plan.rows_of(block);
      T* result = y.as<T>() + rows.begin * out;
      weight.multiply(rows.count, x.as<const T>() + rows.begin * in, result);
      add_branch(residual.as<const T>() + rows.begin * out, result, linear.bias.as<const T>(), factors, scale, rows,
                 out, result);
    }
  });
}

template <class T>
void residual_backward(Workspace& workspace, const TensorRef& x, const RowLinear& linear, const BranchScale& scale,
                       const TensorRef& grad, const TensorRef& grad_x, const RowLinearGradients& gradients) {
  const std::int64_t in = x.sizes[1], out = linear.weight.sizes[0];
  const RowPlan plan = plan_rows(x.sizes[0], in + 2 * out);
  const GroupSums<T> weight_sums(workspace, gradients.weight, plan.groups);
  const GroupVectorSums<T> bias_sums(workspace, gradients.bias, out, plan.groups);
  const T* factors = branch_factors<T>(workspace, scale, plan.rows);
  parallel_for(0, plan.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    T* scaled = scratch.allocate<T>(plan.largest_block() * out);
    T* sums = scratch.allocate<T>(out);
    for (std::int64_t group = begin; group < end; ++group) {
      for (std::int64_t block = plan.first_block(group); block < plan.first_block(group + 1); ++block) {
        const RowRange rows = plan.rows_of(block);
        const T* g = scaled_gradient(grad.as<const T>() + rows.begin * out, factors, scale, rows, out, scaled);
        if (weight_sums.wanted()) {  // gᵀ x
          const T beta = block == plan.first_block(group) ? T(0) : T(1);
          gemm_serial<T>(true, false, out, in, rows.count, T(1), g, out, x.as<const T>() + rows.begin * in, in, beta,
                         weight_sums.of(group), in);
        }
        add_column_sums(g, rows.count, out, bias_sums.of(group), sums);
        if (!grad_x.present()) continue;
        gemm_serial<T>(false, false, rows.count, in, out, T(1), g, out, linear.weight.as<const T>(), in, T(0),
                       grad_x.as<T>() + rows.begin * in, in);
      }
    }
  });
  weight_sums.add_up(plan.blocks == 0);
  bias_sums.add_up();
}

// --- the table ------------------------------------------------------------------------------------------------------

void linear(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& y) {
  if (linear.packed.present()) return linear_forward_bf16(norm, linear, y);
  dispatch_floating(y.dtype, [&](auto zero) { linear_forward<decltype(zero)>(workspace, norm, linear, y); });
}
void linear_gradients(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& grad,
                      const RowNormGradients& norm_gradients, const RowLinearGradients& linear_gradients) {
  if (linear.packed.present()) {
    return linear_backward_bf16(workspace, norm, linear, grad, norm_gradients, linear_gradients);
  }
  dispatch_floating(grad.dtype, [&](auto zero) {
    linear_backward<decltype(zero)>(workspace, norm, linear, grad, norm_gradients, linear_gradients);
  });
}
void residual(Workspace& workspace, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
              const BranchScale& scale, const TensorRef& y) {
  if (linear.packed.present()) return residual_forward_bf16(workspace, residual, x, linear, scale, y);
  dispatch_floating(y.dtype,
                    [&](auto zero) { residual_forward<decltype(zero)>(workspace, residual, x, linear, scale, y); });
}
void residual_gradients(Workspace& workspace, const TensorRef& x, const RowLinear& linear, const BranchScale& scale,
                        const TensorRef& grad, const TensorRef& grad_x, const RowLinearGradients& gradients) {
  if (linear.packed.present()) {
    return residual_backward_bf16(workspace, x, linear, scale, grad, grad_x, gradients);
  }
  dispatch_floating(grad.dtype, [&](auto zero) {
    residual_backward<decltype(zero)>(workspace, x, linear, scale, grad, grad_x, gradients);
  });
}
void mlp(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
         const BranchScale& scale, const TensorRef& pre, const TensorRef& y) {
  if (fc1.packed.present()) return mlp_forward_bf16(workspace, norm, fc1, fc2, scale, pre, y);
  dispatch_floating(y.dtype, [&](auto zero) { mlp_forward<decltype(zero)>(workspace, norm, fc1, fc2, scale, pre, y); });
}
void mlp_gradients(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                   const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                   const RowNormGradients& norm_gradients, const RowLinearGradients& fc1_gradients,
                   const RowLinearGradients& fc2_gradients) {
  if (fc1.packed.present()) {
    return mlp_backward_bf16(workspace, norm, fc1, fc2, scale, pre, grad, norm_gradients, fc1_gradients, fc2_gradients);
  }
  dispatch_floating(grad.dtype, [&](auto zero) {
    mlp_backward<decltype(zero)>(workspace, norm, fc1, fc2, scale, pre, grad, norm_gradients, fc1_gradients,
                                 fc2_gradients);
  });
}

}  // namespace
}  // namespace cpu

constinit const PreNormKernels cpu_pre_norm_kernels = {
    .linear = cpu::linear,
    .linear_backward = cpu::linear_gradients,
    .linear_residual = cpu::residual,
    .linear_residual_backward = cpu::residual_gradients,
    .mlp = cpu::mlp,
    .mlp_backward = cpu::mlp_gradients,
};

}  // namespace polygrad
