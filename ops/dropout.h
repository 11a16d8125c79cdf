// Random zeroing: dropout of elements, drop path (stochastic depth) of whole samples, and the residual connection.
//
// Where this stands: front of ops/kernels/dropout.h. Dimension 0 is the batch. What an element draws depends on its
// sample's number (generator's first_sample + row), its index within the sample and the generator's stream, and on
// nothing else: not on the batch's size, the threads or the order of calls. No mask is stored; the backward draws the
// same numbers again. Each call takes one stream of the generator, whatever p is.
// f32 and f64, and dropout and drop_path also bf16, on a GPU f16 too; p is the probability of a zero, 0 <= p < 1 (else
// ValueError), and what is kept is multiplied by 1/(1 - p), so the mean stays. These ops know no training mode: in
// evaluation, do not call them or pass p = 0, which is the identity. Read next: engine/generator.h,
// ops/kernels/dropout.h (the counters).
#pragma once

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

// Each element on its own (Srivastava et al., 2014). p = 0: x itself. Gradient: g · mask / (1 - p).
Tensor dropout(const Tensor& x, double p, Generator& generator);
// Whole samples: x[b] stays or becomes 0 (Huang et al., 2016; timm's DropPath). p = 0: x itself.
// Gradient: as dropout, with the sample's mask.
Tensor drop_path(const Tensor& x, double p, Generator& generator);
// x + drop_path(branch) in one pass; x and branch have one shape, and one dtype, or branch is 16 bit beside an f32 x:
// how what was computed in 16 bits (precision.h) comes back into the f32 stream. A generator is needed only for p > 0
// (else ValueError). Throws ShapeError, DTypeError. Gradients: g for x, drop_path(g), in branch's dtype, for branch.
Tensor residual_add(const Tensor& x, const Tensor& branch, double drop_path_p = 0, Generator* generator = nullptr);

}  // namespace polygrad
