// Views: other shapes on the same memory. All dtypes, any strides, every device; no kernel is run.
//
// Where this stands: the lowest family of ops/, built on make_view (engine/autograd.h). A view shares its tensor's
// storage and version counter, also a view of a view, and writing one in place is seen through all of them. Each is
// differentiable. Dimensions and indices may be negative (counted from the end).
// Names and meanings are torch's; where torch silently adjusts an argument (slice bounds, squeeze), these throw.
// Read next: copy.h (cat, stack, split, pad, roll).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

// As `end` of a slice: up to the last element.
inline constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();

// The elements of x in row-major order, under another shape; one size may be -1 (whatever is left). Shares memory where
// the strides of x allow it, else copies (a transposed matrix cannot be flattened in place).
// Throws ShapeError where the number of elements differs. Gradient: reshape(g, shape of x).
Tensor reshape(const Tensor& x, const Shape& shape);
// Dimensions start ... end (both included) become one; a scalar becomes (1). Throws IndexError for a dimension that is
// not there, ShapeError for start > end. Gradient: reshape(g, shape of x).
Tensor flatten(const Tensor& x, int start = 0, int end = -1);
// Exchanges two dimensions. Throws IndexError. Gradient: transpose(g, dim0, dim1).
Tensor transpose(const Tensor& x, int dim0, int dim1);
// y's dimension i is x's dimension dims[i]. Throws ShapeError unless dims names each dimension once.
// Gradient: the inverse permutation of g.
Tensor permute(const Tensor& x, const std::vector<int>& dims);
// Indices start, start + step, ... < end of one dimension. 0 <= start <= end <= size, after negative ones were counted
// from the end, else IndexError; ValueError for step < 1. Gradient: g in a tensor of zeros.
Tensor slice(const Tensor& x, int dim, std::int64_t start, std::int64_t end = kEnd, std::int64_t step = 1);
// One index of a dimension, which disappears. Throws IndexError. Gradient: g in a tensor of zeros.
Tensor select(const Tensor& x, int dim, std::int64_t index);
// Removes a dimension of size 1 (else ShapeError). Gradient: unsqueeze(g, dim).
Tensor squeeze(const Tensor& x, int dim);
// Inserts a dimension of size 1 before position dim, -rank-1 <= dim <= rank (IndexError). Gradient: squeeze(g, dim).
Tensor unsqueeze(const Tensor& x, int dim);
// Repeats dimensions of size 1, and new leading ones, with stride 0; -1 keeps a size. Such a view cannot be written in
// place. Throws ShapeError where another size would change. Gradient: g summed over the repeated dimensions.
Tensor expand(const Tensor& x, const Shape& shape);

}  // namespace polygrad
