// Normalisation layers' operations.
//
// Where this stands: fronts over ops/kernels/norm.h. Read next: models/nn/layer_norm.h (the module).
#pragma once

#include "engine/tensor.h"

namespace polygrad {

// Layer normalisation over the last dimension: x̂ = (x - mean)/sqrt(var + eps), var without Bessel's correction;
// y = x̂·weight + bias. x: (..., D), f32 or f64; weight, bias: (D), each may be undefined (1 and 0). Any strides.
// Under a PrecisionGuard (precision.h) x is f32 or bf16 (f16) and y bf16 (f16), since a product reads it; weight, bias
// and all that is computed stay f32. Gradient, with h = g·weight and means over D: dx = (h - mean(h) -
// x̂·mean(h·x̂))/sqrt(var + eps); dweight = Σ g·x̂, dbias = Σ g over all rows, added in f64 in a fixed order. Ba, Kiros &
// Hinton 2016. Throws DTypeError, DeviceError; ShapeError for an x without dimensions or a weight or bias that is not
// (D); ValueError for eps < 0.
Tensor layer_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

}  // namespace polygrad
