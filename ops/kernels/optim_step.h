// Kernels of the optim_step family: lists of contiguous tensors, each f32 or f64, updated in place.
//
// Where this stands: between ops/optim_step.cpp (checks; bias corrections as numbers) and ops/cpu/optim_step.cpp.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct AdamWRefs {
  TensorRef param, grad, exp_avg, exp_avg_sq;
};
struct AdamWFactors {
  double keep;  // of the parameter: 1 - lr·weight_decay
  double beta1, beta2;
  double step_size;    // lr / (1 - beta1^step)
  double root_factor;  // 1 / sqrt(1 - beta2^step)
  double eps;
  double grad_scale;  // gradients are multiplied by this as they are read, in f64
};

struct SgdRefs {
  TensorRef param, grad, momentum_buffer;  // the buffer is absent where momentum is 0
};
struct SgdFactors {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, first;
  double grad_scale;  // as above
};

struct EmaRefs {
  TensorRef ema, value;
};

struct OptimStepKernels {
  void (*adamw)(Workspace&, const AdamWRefs* tensors, std::int64_t count, const AdamWFactors& factors);
  void (*sgd)(Workspace&, const SgdRefs* tensors, std::int64_t count, const SgdFactors& factors);
  // sum (1), f64, becomes the sum of (x·factor)², in f64.
  void (*sum_squares)(Workspace&, const TensorRef* tensors, std::int64_t count, double factor, const TensorRef& sum);
  // The largest |x|, 0 for none; NaN where there is one.
  double (*max_abs)(Workspace&, const TensorRef* tensors, std::int64_t count);
  // x = x·factor, formed in f64.
  void (*scale)(Workspace&, const TensorRef* tensors, std::int64_t count, double factor);
  // ema = ema + rate·(value - ema).
  void (*ema)(Workspace&, const EmaRefs* tensors, std::int64_t count, double rate);
};

extern const OptimStepKernels cpu_optim_step_kernels;
const OptimStepKernels& cuda_optim_step_kernels();
inline const OptimStepKernels& optim_step_kernels(DeviceType device) {
  return select_kernels(device, cpu_optim_step_kernels, cuda_optim_step_kernels);
}

}  // namespace polygrad
