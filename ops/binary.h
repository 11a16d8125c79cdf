// Elementwise maps of two tensors, with broadcasting.
//
// Where this stands: fronts over ops/kernels/binary.h, which also holds the formulas.
// Shapes broadcast by the usual rule: aligned at the right, a size of 1 (or a missing one) is repeated; ShapeError
// names both where they do not fit. dtypes and devices must be equal (DTypeError, DeviceError): nothing is promoted. A
// double stands for a tensor of no dimensions, of the other's dtype. Arithmetic takes f32 and f64; any strides; the
// result is contiguous. The gradient of a broadcast operand is summed over the repeated dimensions, in f64 and in a
// fixed order.
#pragma once

#include "engine/tensor.h"

namespace polygrad {

Tensor add(const Tensor& a, const Tensor& b);  // g; g
Tensor sub(const Tensor& a, const Tensor& b);  // g; -g
Tensor mul(const Tensor& a, const Tensor& b);  // g·b; g·a
Tensor div(const Tensor& a, const Tensor& b);  // g/b; -g·a/b²
// The larger and the smaller; NaN where one of them is NaN. g goes to the chosen operand, half to each where equal.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
Tensor maximum(const Tensor& a, double b);
Tensor minimum(const Tensor& a, double b);

Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& x);

// Comparisons: a bool tensor, without a gradient. f32, f64, i64, i32, u8 and bool; NaN is equal to nothing.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
// For an integer or bool tensor, b must be a value of its dtype (else ValueError): eq(ids, 0.5) is a mistake.
Tensor eq(const Tensor& a, double b);
Tensor ne(const Tensor& a, double b);
Tensor lt(const Tensor& a, double b);
Tensor le(const Tensor& a, double b);
Tensor gt(const Tensor& a, double b);
Tensor ge(const Tensor& a, double b);

}  // namespace polygrad
