// Reading by index: gather, index_select, embedding, one_hot, masked_fill.
//
// Where this stands: front of ops/kernels/index.h. Indices are i64 on the same device; each is checked before a kernel
// reads with it, and one outside its range is an IndexError that names its position and value (indices are not counted
// from the end). Gradients add up repeated indices in the order of their positions, without atomics, so they are the
// same bits for any number of threads.
// x of the reading ops may have any dtype; gradients are f32 and f64. Names and meanings are torch's.
// Read next: softmax.h, loss.h.
#pragma once

#include <cstdint>

#include "engine/tensor.h"

namespace polygrad {

// y[.., i, ..] = x[.., index[.., i, ..], ..] along dim. index: i64, of x's sizes but for dim (ShapeError).
// Gradient: gx[.., index[.., i, ..], ..] += g[.., i, ..].
Tensor gather(const Tensor& x, int dim, const Tensor& index);
// The given indices of one dimension, in the order of ids (rank 1, repetition allowed).
// Gradient: gx[.., ids[i], ..] += g[.., i, ..].
Tensor index_select(const Tensor& x, int dim, const Tensor& ids);
// Rows of a table: weight (rows, width), ids of any shape -> (ids..., width). No ids, no rows: an empty result, a zero
// gradient. padding_idx names a row that gets no gradient (-1: none; else ValueError outside the table).
// Gradient: gw[r] = sum of g over the positions with id r; 0 for padding_idx.
Tensor embedding(const Tensor& weight, const Tensor& ids, std::int64_t padding_idx = -1);
// ids of any shape -> (ids..., classes): 1 at the id, else 0. Not differentiable.
Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype = DType::f32);
// value where mask (bool, broadcast to x's shape) is true, else x; value is converted to x's dtype.
// Gradient: g where mask is false, else 0.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

namespace detail {
// For fronts that read with indices: throws DTypeError unless ids is i64, and IndexError
// "[op] name[position] = value; expected 0 <= value < size" for the first one outside that isn't *allowed.
void check_indices(const char* op, const char* name, const Tensor& ids, std::int64_t size,
                   const std::int64_t* allowed = nullptr);
}  // namespace detail

}  // namespace polygrad
