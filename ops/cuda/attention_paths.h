// The paths of attention on a GPU, as the table of attention.cu names them; signatures as in ops/kernels/attention.h.
#pragma once

#include "ops/kernels/attention.h"

namespace polygrad::cuda::attention {

// attention_tiled.cu
void tiled_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
void tiled_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                    const TensorRef& grad, const AttentionGradients&);
// dO_i · O_i in (B, H, Nq), f32 or f64; softmax's backward asks for it, and for other φ it is absent.
TensorRef inner_products(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& grad);
// attention_mma.cu: the tiled path on tensor cores, where it has kernels for the problem, else the above.
void tensor_core_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
void tensor_core_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                          const TensorRef& grad, const AttentionGradients&);
// attention_whole.cu
void materialised_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
void materialised_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                           const TensorRef& grad, const AttentionGradients&);
void map(Workspace&, const AttentionProblem&, const TensorRef& map);
// attention_norms.cu
void norms(Workspace&, const AttentionProblem&, const TensorRef& x, const TensorRef& norms);
// attention_linear.cu
void linear_forward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state);
void linear_backward(Workspace&, const AttentionProblem&, const TensorRef& out, const TensorRef& state,
                     const TensorRef& grad, const AttentionGradients&);

}  // namespace polygrad::cuda::attention
