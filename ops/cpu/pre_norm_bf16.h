// The pre_norm family's kernels in mixed precision; see pre_norm_bf16.cpp. Arguments as in ops/kernels/pre_norm.h, with
// packed weights.
#pragma once

#include "ops/kernels/pre_norm.h"

namespace polygrad::cpu {

void linear_forward_bf16(const RowNorm& norm, const RowLinear& linear, const TensorRef& y);
void linear_backward_bf16(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& grad,
                          const RowNormGradients& norm_gradients, const RowLinearGradients& linear_gradients);
void residual_forward_bf16(Workspace& workspace, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
                           const BranchScale& scale, const TensorRef& y);
void residual_backward_bf16(Workspace& workspace, const TensorRef& x, const RowLinear& linear, const BranchScale& scale,
                            const TensorRef& grad, const TensorRef& grad_x, const RowLinearGradients& gradients);
void mlp_forward_bf16(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                      const BranchScale& scale, const TensorRef& pre, const TensorRef& y);
void mlp_backward_bf16(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                       const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                       const RowNormGradients& norm_gradients, const RowLinearGradients& fc1_gradients,
                       const RowLinearGradients& fc2_gradients);

}  // namespace polygrad::cpu
