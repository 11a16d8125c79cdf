// Reductions: sums, means, largest values.
//
// Where this stands: fronts over ops/kernels/reduce.h. Floating tensors of f32 or f64 (else DTypeError), any strides.
// Sums are taken in f64 (also of f32) and in an order that depends on the shape alone, so they are the same for any
// number of threads. Dimensions may be counted from the end; a wrong one is an IndexError.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

// The sum of all elements, a tensor without dimensions; 0 of none. Gradient: g for every element.
Tensor sum(const Tensor& x);
// Over the given dimensions (at least one, none twice: ValueError), which disappear, or stay with size 1.
Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keepdim = false);
// x summed over what broadcasting `shape` to x's shape would repeat: the adjoint of expand. Gradient: g, expanded.
// Throws ShapeError where `shape` does not broadcast to x's.
Tensor sum_to_shape(const Tensor& x, const Shape& shape);
// The sum divided by the number of elements summed. Throws ValueError for the mean of nothing. Gradient: g/count.
Tensor mean(const Tensor& x);
Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keepdim = false);

// The largest value along a dimension; NaN where there is one. Throws ValueError where the dimension has size 0.
// Gradient: g to the elements equal to it, in equal parts.
Tensor amax(const Tensor& x, int dim, bool keepdim = false);
// The index (i64) of the largest value along a dimension: the first of equals, a NaN before all. No gradient.
Tensor argmax(const Tensor& x, int dim);
// The k largest values of each row (last dimension), descending, and their indices (i64); of equals the first comes
// first, a NaN before all. Throws ValueError unless 0 <= k <= size. No gradient: an x that needs one is a GradError.
std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k);

}  // namespace polygrad
