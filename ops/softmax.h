// Softmax over one dimension.
//
// Where this stands: fronts over ops/kernels/softmax.h. f32 or f64 (else DTypeError), any strides; the result is
// contiguous. The largest value is subtracted first, so no finite input overflows. A row that holds NaN or +infinity,
// or nothing but -infinity, is NaN (as torch's); other -infinities get 0.
#pragma once

#include "engine/tensor.h"

namespace polygrad {

// e^x / Σ e^x along `dim`. Gradient: y·(g - Σ g·y).
Tensor softmax(const Tensor& x, int dim);
// x - log Σ e^x along `dim`. Gradient: g - e^y·Σ g.
Tensor log_softmax(const Tensor& x, int dim);

}  // namespace polygrad
