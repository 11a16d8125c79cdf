// Layer norm for kernels of other families.
//
// Where this stands: implemented in norm.cu, used by pre_norm.cu.
#pragma once

#include "engine/tensor_ref.h"
#include "engine/workspace.h"

namespace polygrad::cuda {

// y = (x - mean)·rstd·weight + bias from a forward's statistics; x, y (rows, n), of one dtype or y in 16 bit.
void layer_norm_again(const TensorRef& x, const TensorRef& weight, const TensorRef& bias, const TensorRef& mean,
                      const TensorRef& rstd, const TensorRef& y);
// As NormKernels::layer_norm_backward, and dx += add (which may be absent).
void layer_norm_backward_add(Workspace& workspace, const TensorRef& g, const TensorRef& x, const TensorRef& weight,
                             const TensorRef& mean, const TensorRef& rstd, const TensorRef& add, const TensorRef& dx,
                             const TensorRef& dweight, const TensorRef& dbias);

}  // namespace polygrad::cuda
