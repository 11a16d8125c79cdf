// Matrix products: matmul, and the linear layer with its epilogue.
//
// Where this stands: fronts over ops/kernels/matmul.h; on the CPU every product ends in ops/cpu/gemm.h. f32 and f64
// (else DTypeError), all arguments of one dtype and device (else DTypeError, DeviceError). A transposed view (and any
// other whose rows or columns are dense) is multiplied in place, without a copy.
// Under a PrecisionGuard (precision.h) x, a and b are f32 or bf16 (f16), each, weights and biases f32, and the result
// is bf16 (f16), as is g; a gradient has the dtype of what it belongs to, and sums are f32.
// Results have the same bits for any number of threads, within a gemm provider. g is the gradient of the result.
// Read next: precision.h (16 bit), gemm_provider.h (which library multiplies), ops/cpu/gemm.h (how).
#pragma once

#include "engine/tensor.h"
#include "ops/gemm_provider.h"

namespace polygrad {

// a (..., m, k) times b (..., k, n) -> (..., m, n). Both have at least two dimensions; the leading ones broadcast.
// Throws ShapeError. Gradient: g bᵀ and aᵀ g, each summed over the dimensions it was broadcast along.
Tensor matmul(const Tensor& a, const Tensor& b);

// y = x weightᵀ + bias: x (..., in), weight (out, in), bias (out) or undefined -> (..., out), as torch's linear.
// Throws ShapeError. Gradient: g weight, gᵀ x (over all rows), and g summed over all rows.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// gelu(linear(x, weight, bias)), the erf form, in one pass: the activation runs on each block of the product while it
// is in the cache. Gradient: linear's, of g gelu'(x weightᵀ + bias).
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace polygrad
