// Checks that many fronts begin with. Internal: not installed.
#pragma once

#include "engine/tensor.h"

namespace polygrad {

// Throws ValueError naming op and argument where x is undefined. Every argument that is not optional is checked before
// anything is asked of it.
void check_defined(const char* op, const Tensor& x, const char* name = "x");
// Throws DTypeError where x is neither f32 nor f64 (16-bit types are storage: cast first); ValueError as above.
void check_floating(const char* op, const Tensor& x, const char* name = "x");
// Throw DTypeError or DeviceError naming both tensors where they differ; ValueError where b is undefined.
void check_same_dtype(const char* op, const Tensor& a, const Tensor& b, const char* b_name = "b");
void check_same_device(const char* op, const Tensor& a, const Tensor& b, const char* b_name = "b");
// Row-major, outside the graph: what most kernels want.
inline Tensor kernel_input(const Tensor& x) { return x.detach().contiguous(); }
// A contiguous tensor as (outer, n, inner) around dimension `dim`, which is n.
TensorRef around(const Tensor& contiguous, int dim);

}  // namespace polygrad
