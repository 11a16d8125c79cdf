// Elementwise maps of one tensor.
//
// Where this stands: fronts over ops/kernels/unary.h; the formulas of values and derivatives are in
// ops/kernels/unary_functors.h. A new map is a struct there, a declaration here, a line in unary.cpp and a row in
// tests/op_cases/unary.cpp.
// All: f32 or f64 (else DTypeError), any shape and strides; the result is contiguous, of x's shape. g is the gradient
// of the result. Names and meanings are torch's unless said otherwise.
#pragma once

#include "engine/tensor.h"

namespace polygrad {

Tensor neg(const Tensor& x);         // -x; -g
Tensor abs(const Tensor& x);         // |x|; g·sign(x), 0 at 0
Tensor exp(const Tensor& x);         // e^x; g·y
Tensor log(const Tensor& x);         // natural logarithm, -infinity at 0, NaN below; g/x
Tensor sqrt(const Tensor& x);        // NaN below 0; g/(2y), infinite at 0
Tensor reciprocal(const Tensor& x);  // 1/x; -g·y²
Tensor square(const Tensor& x);      // x²; 2g·x
// x^n for an integer n of any sign; x^0 = 1. Gradient: g·n·x^(n-1), 0 for n = 0. ValueError
// for the most negative int.
Tensor pow(const Tensor& x, int n);

Tensor tanh(const Tensor& x);     // g·(1 - y²)
Tensor sigmoid(const Tensor& x);  // 1/(1 + e^-x); g·y·(1 - y)
Tensor relu(const Tensor& x);     // max(x, 0), NaN stays; g where x > 0
Tensor elu(const Tensor& x);      // x where x > 0, else e^x - 1; g·(y + 1) where x <= 0
// x·Φ(x), Φ the normal distribution function: the exact (erf) form. g·(Φ(x) + x·φ(x)). Hendrycks & Gimpel 2016.
Tensor gelu(const Tensor& x);
// Its approximation x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))); it differs by at most 4.8e-4.
Tensor gelu_tanh(const Tensor& x);
Tensor silu(const Tensor& x);      // x·sigmoid(x); g·s·(1 + x·(1 - s)), s = sigmoid(x)
Tensor softplus(const Tensor& x);  // log(1 + e^x), without overflow; g·sigmoid(x)
Tensor exp_neg(const Tensor& x);   // e^-x (the attention paper's "Exp"); -g·y

}  // namespace polygrad
