// The pre_norm family's kernels: the row-wise halves of a pre-norm transformer block, each in one pass over memory.
//
// Where this stands: between ops/pre_norm.cpp (which has checked everything) and ops/cpu/pre_norm*.cpp. All tensors
// are contiguous and of one dtype T (f32 or f64) unless said otherwise; "rows" are tokens of all samples.
// With packed weights T is f32, and their dtype (bf16; CUDA: or f16) is what only products read: marked with * below.
// Read next: ops/cpu/row_blocks.h, ops/cpu/pre_norm_mlp.cpp.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"
#include "ops/kernels/dropout.h"

namespace polygrad {

// layer_norm of x (rows, D) with weight and bias (D). The forward writes mean and rstd, f64 (rows); the backward reads
// them and normalises again, so that the normalised rows are never stored.
struct RowNorm {
  TensorRef x, weight, bias;
  double eps = 0;
  TensorRef mean, rstd;
};
struct RowNormGradients {
  TensorRef x, weight, bias;  // each may be absent: not needed
};

// x weightᵀ + bias: weight (out, in), bias (out).
struct RowLinear {
  TensorRef weight, bias;
  // Present: products are computed in bf16 with this (ops/rounded_weights.h), which is weightᵀ in a forward and weight
  // in a backward; x's rows are f32 all the same, and so are sums and gradients of parameters.
  TensorRef packed = {};
};
struct RowLinearGradients {
  TensorRef weight, bias;  // each may be absent
};

// What a residual branch is multiplied by: drop path's factor of the row's sample.
struct BranchScale {
  DropoutStream stream;
  std::int64_t rows_per_sample = 1;
};

struct PreNormKernels {
  // y* (rows, out) = linear(norm(x)); grad*
  void (*linear)(Workspace&, const RowNorm& norm, const RowLinear& linear, const TensorRef& y);
  void (*linear_backward)(Workspace&, const RowNorm& norm, const RowLinear& linear, const TensorRef& grad,
                          const RowNormGradients& norm_gradients, const RowLinearGradients& linear_gradients);
  // y (rows, out) = residual + scale · linear(x), x* (rows, in)
  void (*linear_residual)(Workspace&, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
                          const BranchScale& scale, const TensorRef& y);
  // The gradient of the residual is `grad` itself; grad_x (of bf16 products bf16 or f32) may be absent.
  void (*linear_residual_backward)(Workspace&, const TensorRef& x, const RowLinear& linear, const BranchScale& scale,
                                   const TensorRef& grad, const TensorRef& grad_x,
                                   const RowLinearGradients& linear_gradients);
  // y (rows, D) = x + scale · fc2(gelu(fc1(norm(x)))); pre* (rows, hidden), where present, keeps gelu's argument.
  void (*mlp)(Workspace&, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2, const BranchScale& scale,
              const TensorRef& pre, const TensorRef& y);
  void (*mlp_backward)(Workspace&, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                       const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                       const RowNormGradients& norm_gradients, const RowLinearGradients& fc1_gradients,
                       const RowLinearGradients& fc2_gradients);
};

extern const PreNormKernels cpu_pre_norm_kernels;
const PreNormKernels& cuda_pre_norm_kernels();
inline const PreNormKernels& pre_norm_kernels(DeviceType device) {
  return select_kernels(device, cpu_pre_norm_kernels, cuda_pre_norm_kernels);
}

}  // namespace polygrad
