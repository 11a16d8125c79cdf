// The update rules of optimizers, in place: AdamW, SGD, gradient norm and clipping, moving averages.
//
// Where this stands: front of ops/kernels/optim_step.h. These functions know one step and no schedule; the optimizers
// of models/optim hold the state and call them. Each takes one tensor or a list of them: a list is one kernel call, cut
// into chunks across all of its tensors, which is what a model with 150 small parameters wants.
// What is written is passed by value (a handle) and follows the in-place rule of engine/tensor.h: parameters that need
// a gradient are written under a NoGradGuard only. It must be contiguous and share no memory with another argument of
// the same call (ValueError; so a list holds each tensor once). f32 and f64; a gradient has its parameter's shape
// (ShapeError) and dtype (DTypeError). No gradients: these are no part of a graph. Results are the same bits for any
// number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

struct AdamWStep {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;           // added to the root, not under it
  double weight_decay = 1e-2;  // decoupled: multiplied by lr, kept out of the moments
  std::int64_t step = 1;       // this update's number, from 1
  double grad_scale = 1;       // g is the gradient times this: clip_factor's, without a pass of its own
};
struct AdamWTensors {
  Tensor param, grad, exp_avg, exp_avg_sq;  // one shape and dtype; the moments start at zero
};
// Loshchilov and Hutter, 2019, as torch computes it:
//     p <- p·(1 - lr·weight_decay)
//     m <- m + (1 - beta1)·(g - m),   v <- beta2·v + (1 - beta2)·g²
//     p <- p - lr/(1 - beta1^step) · m / (sqrt(v)/sqrt(1 - beta2^step) + eps)
// Throws ValueError for a step below 1, betas outside [0, 1), a negative lr, eps, weight_decay or
// grad_scale, NaN in any of them.
void adamw_step(Tensor param, const Tensor& grad, Tensor exp_avg, Tensor exp_avg_sq, const AdamWStep& options);
void adamw_step(std::span<const AdamWTensors> tensors, const AdamWStep& options);

struct SgdStep {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;  // added to the gradient: coupled, as torch's SGD
  bool nesterov = false;
  bool first = false;     // the momentum buffer holds nothing yet: it becomes g, undampened
  double grad_scale = 1;  // as AdamWStep's
};
struct SgdTensors {
  Tensor param, grad, momentum_buffer;  // the buffer may be undefined where momentum is 0
};
//     g <- g + weight_decay·p,   b <- momentum·b + (1 - dampening)·g   (first: b <- g)
//     p <- p - lr·(nesterov: g + momentum·b; momentum: b; else g)
// Throws ValueError for momentum without a buffer, nesterov without momentum or with dampening, a negative lr,
// momentum, weight_decay or grad_scale.
void sgd_step(Tensor param, const Tensor& grad, Tensor momentum_buffer, const SgdStep& options);
void sgd_step(std::span<const SgdTensors> tensors, const SgdStep& options);

// sqrt of the sum of all squares, in f64, without overflow or underflow on the way. Undefined tensors are left out.
// Infinite or NaN where an element is.
double global_norm(const std::vector<Tensor>& tensors);
// The sum of all squares in f64, a tensor without dimensions on the tensors' device: for who reads it together with
// other numbers, since a GPU's norm is a wait. Of f32 tensors its root is global_norm; of f64 ones squares may overflow
// or underflow. Undefined tensors are left out; ValueError where none is defined.
Tensor sum_squares(const std::vector<Tensor>& tensors);
// x <- x·factor; the product is formed in f64.
void scale_(Tensor x, double factor);
// What a gradient of this norm must be multiplied by: min(1, max_norm / (norm + 1e-6)), or 1 where the norm is infinite
// or NaN. ValueError unless max_norm > 0.
double clip_factor(double norm, double max_norm);
// Scales all gradients by clip_factor and returns the norm from before. Where that is infinite or
// NaN they stay as they are: the caller must look (a trainer stops). ValueError unless max_norm > 0.
double clip_grad_norm(const std::vector<Tensor>& grads, double max_norm);

// Exponential moving average: ema <- ema + (1 - decay)·(value - ema), so equal values stay equal. Tensors that are not
// f32 or f64 (counters) are copied. ValueError unless 0 <= decay <= 1.
void ema_update(Tensor ema, const Tensor& value, double decay);
void ema_update(const std::vector<Tensor>& ema, const std::vector<Tensor>& values, double decay);

}  // namespace polygrad
