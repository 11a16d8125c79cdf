// The kernels of layer normalisation.
//
// Where this stands: between ops/norm.cpp (checks, gradients) and ops/cpu/norm.cpp. x, y, g and dx are contiguous
// (rows, D) of one dtype, f32 or f64; of f32 y and g may be bf16. weight, bias and their gradients (D), of x's dtype;
// mean and rstd (rows), always f64.
#pragma once

#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct NormKernels {
  // y = (x - mean)·rstd·weight + bias, with rstd = 1/sqrt(var + eps). weight and bias may be absent.
  void (*layer_norm)(Workspace&, const TensorRef& x, const TensorRef& weight, const TensorRef& bias, double eps,
                     const TensorRef& y, const TensorRef& mean, const TensorRef& rstd);
  // Absent gradients are not computed; an absent weight is 1.
  void (*layer_norm_backward)(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& weight,
                              const TensorRef& mean, const TensorRef& rstd, const TensorRef& dx,
                              const TensorRef& dweight, const TensorRef& dbias);
};

extern const NormKernels cpu_norm_kernels;
const NormKernels& cuda_norm_kernels();
inline const NormKernels& norm_kernels(DeviceType device) {
  return select_kernels(device, cpu_norm_kernels, cuda_norm_kernels);
}

}  // namespace polygrad
