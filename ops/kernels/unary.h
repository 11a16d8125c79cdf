// The kernels of the elementwise maps of one tensor: one pair of entries for each functor.
//
// Where this stands: between ops/unary.cpp (checks, gradients) and ops/cpu/unary.cpp. All tensors contiguous, of one
// dtype (f32 or f64) and of equal size.
#pragma once

#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"
#include "ops/kernels/unary_functors.h"

namespace polygrad {

struct UnaryKernels {
  // y = f(x)
  using Forward = void (*)(Workspace&, const TensorRef& x, const TensorRef& y);
  // dx = g·f'; `saved` is x or y, as the functor's kReads says (absent where it reads nothing).
  using Backward = void (*)(Workspace&, const TensorRef& g, const TensorRef& saved, const TensorRef& dx);
  Forward forward[functors::All::kSize];  // by functors::kPlace
  Backward backward[functors::All::kSize];
  void (*pow)(Workspace&, const TensorRef& x, int n, const TensorRef& y);
  void (*pow_backward)(Workspace&, const TensorRef& g, const TensorRef& x, int n, const TensorRef& dx);
};

extern const UnaryKernels cpu_unary_kernels;
const UnaryKernels& cuda_unary_kernels();
inline const UnaryKernels& unary_kernels(DeviceType device) {
  return select_kernels(device, cpu_unary_kernels, cuda_unary_kernels);
}

}  // namespace polygrad
