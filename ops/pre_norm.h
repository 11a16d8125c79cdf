// The halves of a pre-norm transformer block, fused: what lies between two products never leaves the cache.
//
//   x = x + proj(attention(pre_norm_linear(x)))      pre_norm_linear, attention_qkv, linear_residual
//   x = x + fc2(gelu(fc1(norm(x))))                  pre_norm_mlp
//
// Where this stands: fronts over ops/kernels/pre_norm.h, used by models/nn. Each is exactly the composition of
// layer_norm, linear, gelu and residual_add that its comment says, computed in blocks of rows: a block is normalised,
// multiplied, activated and added while it is in the cache. The backward normalises and activates again, so that of
// all intermediate values only the argument of gelu is stored.
// f32 and f64; all arguments of one dtype and device (else DTypeError, DeviceError); ShapeError where sizes do not fit.
// Under a PrecisionGuard (precision.h) all of it is f32 but what only a product reads: pre_norm_linear's result, and
// the x of linear_residual, which may be f32 or 16 bit. What is stored for the backward is 16 bit too. Results have the
// same bits for any number of threads. g is the gradient of the result. Read next: norm.h, matmul.h, dropout.h (the
// parts), ops/cpu/row_blocks.h (how).
#pragma once

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

struct NormParameters {
  Tensor weight, bias;  // (D)
  double eps = 1e-5;
};
struct LinearParameters {
  Tensor weight;  // (out, in)
  Tensor bias;    // (out)
};
// The drop path of a residual branch (dropout.h): p = 0 keeps every sample and needs no generator.
struct BranchDrop {
  double p = 0;
  Generator* generator = nullptr;
};

// linear(layer_norm(x, norm), linear): x (..., D) -> (..., out). Gradients: those of the composition; what layer_norm
// gave is computed again from x.
Tensor pre_norm_linear(const Tensor& x, const NormParameters& norm, const LinearParameters& linear);

// residual_add(residual, linear(x, linear), drop): residual (..., out), x (..., in) -> (..., out); dimension 0 is the
// batch. Gradients: g for the residual; those of linear, of g times the sample's factor, for the others.
Tensor linear_residual(const Tensor& residual, const Tensor& x, const LinearParameters& linear,
                       const BranchDrop& drop = {});

// residual_add(x, fc2(gelu(fc1(layer_norm(x, norm)))), drop): x (B, ..., D) -> the same shape; fc1 (hidden, D),
// fc2 (D, hidden); gelu in its erf form. Gradients: those of the composition.
Tensor pre_norm_mlp(const Tensor& x, const NormParameters& norm, const LinearParameters& fc1,
                    const LinearParameters& fc2, const BranchDrop& drop = {});

}  // namespace polygrad
