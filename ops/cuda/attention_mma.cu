// The tiled path of attention on a GPU: on tensor cores where q, k and v have 16 bits and a head's width has kernels,
// else without them.
#include "ops/cuda/attention_mma_launch.h"
#include "ops/cuda/attention_paths.h"

namespace polygrad::cuda::attention {

void tensor_core_forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                         const TensorRef& state) {
  if (!has_tensor_core_kernels(problem)) return tiled_forward(workspace, problem, out, state);
  if (problem.q.dtype == DType::bf16) {
    mma_forward<BFloat16>(problem, out, state);
  } else {
    mma_forward<Float16>(problem, out, state);
  }
}

// dbias is the only one that the kernel without tensor cores computes: it is of the size of the scores anyway.
void tensor_core_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                          const TensorRef& state, const TensorRef& grad, const AttentionGradients& gradients) {
  if (!has_tensor_core_kernels(problem)) {
    return tiled_backward(workspace, problem, out, state, grad, gradients);
  }
  const TensorRef inner = inner_products(workspace, problem, out, grad);
  const bool is_bf16 = problem.q.dtype == DType::bf16;
  if (gradients.dq.present()) {
    const auto run = is_bf16 ? mma_backward_queries<BFloat16> : mma_backward_queries<Float16>;
    run(problem, state, inner, grad, gradients.dq);
  }
  if (gradients.dk.present() || gradients.dv.present()) {
    const auto run = is_bf16 ? mma_backward_keys<BFloat16> : mma_backward_keys<Float16>;
    run(problem, state, inner, grad, gradients.dk, gradients.dv);
  }
  if (gradients.dbias.present()) {
    tiled_backward(workspace, problem, out, state, grad, {.dq = {}, .dk = {}, .dv = {}, .dbias = gradients.dbias});
  }
}

}  // namespace polygrad::cuda::attention
