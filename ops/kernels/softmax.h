// The kernels of softmax.
//
// Where this stands: between ops/softmax.cpp (checks, gradients) and ops/cpu/softmax.cpp. All tensors contiguous, seen
// as (outer, n, inner) with the softmax along n; one dtype, f32 or f64.
#pragma once

#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct SoftmaxKernels {
  void (*softmax)(Workspace&, const TensorRef& x, const TensorRef& y);
  void (*softmax_backward)(Workspace&, const TensorRef& g, const TensorRef& y, const TensorRef& dx);
  void (*log_softmax)(Workspace&, const TensorRef& x, const TensorRef& y);
  void (*log_softmax_backward)(Workspace&, const TensorRef& g, const TensorRef& y, const TensorRef& dx);
};

extern const SoftmaxKernels cpu_softmax_kernels;
const SoftmaxKernels& cuda_softmax_kernels();
inline const SoftmaxKernels& softmax_kernels(DeviceType device) {
  return select_kernels(device, cpu_softmax_kernels, cuda_softmax_kernels);
}

}  // namespace polygrad
