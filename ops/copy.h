// Rearrangements that need new memory: cat, stack, split, pad, roll. All dtypes, any strides.
//
// Where this stands: beside view.h. These have no kernels of their own: each writes its result block by block through
// the engine's strided copy, so they run wherever that runs. (contiguous, clone and to are methods of Tensor.)
// Names and meanings are torch's. Read next: index.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/tensor.h"

namespace polygrad {

// Tensors behind one another along a dimension; all other sizes, dtypes and devices are equal. Throws ValueError for an
// empty list, ShapeError, DTypeError, DeviceError. Gradient: the slices of g.
Tensor cat(const std::vector<Tensor>& tensors, int dim);
// Tensors of one shape along a new dimension. Errors as cat. Gradient: g at each index of that dimension.
Tensor stack(const std::vector<Tensor>& tensors, int dim);
// Views of `size` indices each along a dimension (the last may have fewer; an empty dimension gives one empty piece).
// Throws ValueError for size < 1. Gradient of each piece: g in a tensor of zeros; where all pieces of a large tensor
// are used, an op that reads them together (attention_qkv) is cheaper.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dim);
// Adds {before, after} elements of `value` on both sides of each dimension. Throws ShapeError unless there is one pair
// for each dimension, ValueError for a negative count. Gradient: the slice of g where x lies.
Tensor pad(const Tensor& x, const std::vector<std::pair<std::int64_t, std::int64_t>>& amounts, double value = 0);
// The element at index i moves to i + shift, modulo the size, in each of the given dimensions.
// Throws ValueError unless there is one shift for each dimension given. Gradient: roll(g, -shifts, dims).
Tensor roll(const Tensor& x, const std::vector<std::int64_t>& shifts, const std::vector<int>& dims);

}  // namespace polygrad
