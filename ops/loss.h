// Losses: cross-entropy with class ids or with distributions as targets, and the mean squared error.
//
// Where this stands: front of ops/kernels/loss.h. Cross-entropy is computed from logits by log-sum-exp in f64, never by
// a softmax followed by a logarithm, and its gradient is one pass over the logits that needs no stored softmax. f32 and
// f64. Options and formulas are torch's, but for what has no elements: a mean over nothing is 0 with a zero gradient
// (torch: NaN), so that a batch of ignored targets cannot poison a run.
// Accumulating trainer: cross_entropy with Reduction::sum for each micro-batch, divided by the counted targets of the
// whole step, gives the gradients of the one big batch, however the ignored targets are spread.
// Read next: optim_step.h.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace polygrad {

enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyOptions {
  double label_smoothing = 0;        // 0 <= e <= 1: e/K of the target goes to each of the K classes
  std::int64_t ignore_index = -100;  // targets that do not count; class ids only
  Reduction reduction = Reduction::mean;
  Tensor class_weight = {};  // (K), of the logits' dtype; undefined: all 1. Without a gradient
};

// Logits (N, K) and class ids (N), or (N, K, d...) and (N, d...), i64. With p = softmax over K, weights w and smoothing
// e, a target y costs
//     L = (1 - e)·w[y]·(-log p[y]) + e/K · sum_k w[k]·(-log p[k])
// and an ignored one 0. none: a loss for each target; sum; mean: the sum over the counted targets' w[y] (their number
// without weights). Throws IndexError naming the sample for a class id outside [0, K) other than ignore_index,
// ShapeError, DTypeError, ValueError (smoothing).
// Gradient: dL/dx[k] = (1 - e)·w[y]·(p[k] - [k = y]) + e/K·(sum w · p[k] - w[k]), times g, divided as the loss is.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options = {});
// Targets are distributions t of the logits' shape and dtype, (N, K) or (N, K, d...), which take no gradient (GradError
// where one is required; detach() it): L = sum_k t'[k]·w[k]·(-log p[k]) with t' = (1 - e)·t + e/K. A class with t' = 0
// costs nothing, even with a logit of -infinity. mean: the sum over N·d..., weights or not. ignore_index has no
// meaning. Gradient: dL/dx[k] = (sum_j t'[j]·w[j])·p[k] - t'[k]·w[k], times g, divided as the loss is.
Tensor cross_entropy_soft(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options = {});
// (x - y)²; shapes must be equal, nothing is broadcast (ShapeError). Gradients: 2(x - y)·g for x, its negative for y,
// divided as the loss is.
Tensor mse_loss(const Tensor& x, const Tensor& y, Reduction reduction = Reduction::mean);

// How many of the targets (i64, any shape) are not ignore_index: what cross_entropy's mean divides by without weights.
// A target on a GPU is copied to the host, which waits for it.
std::int64_t counted_targets(const Tensor& target, std::int64_t ignore_index = -100);

}  // namespace polygrad
