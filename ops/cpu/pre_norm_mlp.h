// The fused MLP's kernels; see pre_norm_mlp.cpp.
#pragma once

#include "ops/kernels/pre_norm.h"

namespace polygrad::cpu {

template <class T>
void mlp_forward(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                 const BranchScale& scale, const TensorRef& pre, const TensorRef& y);
template <class T>
void mlp_backward(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                  const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                  const RowNormGradients& norm_gradients, const RowLinearGradients& fc1_gradients,
                  const RowLinearGradients& fc2_gradients);

}  // namespace polygrad::cpu
