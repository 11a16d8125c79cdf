// The kernels of the reductions.
//
// Where this stands: between ops/reduce.cpp (checks, gradients) and ops/cpu/reduce.cpp. All tensors contiguous; values
// of one dtype (f32 or f64), indices i64.
#pragma once

#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct ReduceKernels {
  // out = scale·Σ x over the dimensions i whose bit i is set in `reduced`; out holds the others in their order.
  void (*sum)(Workspace&, const TensorRef& x, std::uint32_t reduced, double scale, const TensorRef& out);
  // x: (outer, n, inner), n >= 1; out: (outer, inner)
  void (*amax)(Workspace&, const TensorRef& x, const TensorRef& out);
  // y: amax's result; g like y, dx like x
  void (*amax_backward)(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& y, const TensorRef& dx);
  void (*argmax)(Workspace&, const TensorRef& x, const TensorRef& indices);
  // x: (rows, n); values, indices: (rows, k), k <= n
  void (*topk)(Workspace&, const TensorRef& x, const TensorRef& values, const TensorRef& indices);
};

extern const ReduceKernels cpu_reduce_kernels;
const ReduceKernels& cuda_reduce_kernels();
inline const ReduceKernels& reduce_kernels(DeviceType device) {
  return select_kernels(device, cpu_reduce_kernels, cuda_reduce_kernels);
}

}  // namespace polygrad
