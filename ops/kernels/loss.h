// Kernels of the loss family: f32 and f64, contiguous.
//
// Where this stands: between ops/loss.cpp (checks; class ids are valid when they come here) and ops/cpu/loss.cpp.
// Logits are (N, K, S): K classes, S places beside one another (1 for plain classification); a "row" is one of the N·S
// sets of K logits.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct LossReduction {
  bool reduce;   // one number instead of one for each row (or element)
  bool average;  // ... divided
};

struct CrossEntropyTerms {
  double label_smoothing;
  std::int64_t ignore_index;
  LossReduction reduction;
};

struct LossKernels {
  // target (N, S) i64; class_weight (K) or absent. y: (N, S), or one element where reduced. log_sum_exp (N, S) f64 and
  // divisor (1) f64 are kept for the backward; divisor is the weight of all counted rows (1 where not averaged).
  void (*cross_entropy)(Workspace&, const TensorRef& logits, const TensorRef& target, const TensorRef& class_weight,
                        const CrossEntropyTerms& terms, const TensorRef& y, const TensorRef& log_sum_exp,
                        const TensorRef& divisor);
  void (*cross_entropy_backward)(Workspace&, const TensorRef& gy, const TensorRef& logits, const TensorRef& target,
                                 const TensorRef& class_weight, const CrossEntropyTerms& terms,
                                 const TensorRef& log_sum_exp, const TensorRef& divisor, const TensorRef& gx);
  // target (N, K, S) of the logits' dtype.
  void (*cross_entropy_soft)(Workspace&, const TensorRef& logits, const TensorRef& target,
                             const TensorRef& class_weight, const CrossEntropyTerms& terms, const TensorRef& y,
                             const TensorRef& log_sum_exp);
  void (*cross_entropy_soft_backward)(Workspace&, const TensorRef& gy, const TensorRef& logits, const TensorRef& target,
                                      const TensorRef& class_weight, const CrossEntropyTerms& terms,
                                      const TensorRef& log_sum_exp, const TensorRef& gx);
  // x and y of one shape; out of that shape, or one element where reduced.
  void (*mse)(Workspace&, const TensorRef& x, const TensorRef& y, const LossReduction& reduction, const TensorRef& out);
  // gx = 2(x - y)·g·factor, divided as the loss is.
  void (*mse_backward)(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& y,
                       const LossReduction& reduction, double factor, const TensorRef& gx);
};

extern const LossKernels cpu_loss_kernels;
const LossKernels& cuda_loss_kernels();
inline const LossKernels& loss_kernels(DeviceType device) {
  return select_kernels(device, cpu_loss_kernels, cuda_loss_kernels);
}

}  // namespace polygrad
