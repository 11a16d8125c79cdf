// The linear path of attention on a GPU: φ = x, so O = κ q (kᵀ v) with κ = score_scale / c. Exact, and O(N d²):
// products by cuBLASLt. A mask is a copy of one factor with zeros in its hidden rows.
#include "ops/cuda/attention_paths.h"
#include "ops/cuda/attention_tile.h"
#include "ops/cuda/products.h"

namespace polygrad::cuda::attention {
namespace {

// Rows of (B, H, N, d) with zeros where the mask (B, N) hides them.
template <class C>
__global__ void hide_kernel(Heads<C> from, const bool* mask, std::int64_t heads, std::int64_t tokens,
                            std::int64_t width, std::int64_t count, WrittenHeads<C> to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t e = i % width, row = i / width, n = row % tokens, head = row / tokens;
  const std::int64_t b = head / heads, h = head % heads;
  to.data.write(to.at(b, h) + n * to.row + e,
                mask[b * tokens + n] ? from.data[from.at(b, h) + n * from.row + e] : C(0));
}

template <class C>
void hide(const TensorRef& from, const TensorRef& mask, const TensorRef& to) {
  const std::int64_t count = from.numel();
  launch("attention_mask", {.x = ceil_div(count, kTileThreads)}, kTileThreads, 0, hide_kernel<C>, Heads<C>(from),
         mask.as<const bool>(), from.sizes[1], from.sizes[2], from.sizes[3], count, WrittenHeads<C>(to));
}

// x, or a copy without its hidden rows.
template <class C>
TensorRef only_visible(Workspace& workspace, const TensorRef& x, const TensorRef& mask) {
  if (!mask.present()) return x;
  TensorRef copy = x;
  std::int64_t step = 1;
  for (int i = 3; i >= 0; step *= x.sizes[i], --i) copy.strides[i] = step;
  copy.data = workspace.allocate<C>(step);
  hide<C>(x, mask, copy);
  return copy;
}

template <class C>
TensorRef square_of(Workspace& workspace, const AttentionProblem& problem, const TensorRef& given) {
  TensorRef ref = problem.q;
  const std::int64_t d = problem.q.sizes[3];
  ref.sizes[2] = d;
  ref.strides[3] = 1, ref.strides[2] = d, ref.strides[1] = d * d, ref.strides[0] = problem.q.sizes[1] * d * d;
  ref.data = given.present() ? given.data : workspace.allocate<C>(ref.numel());
  return ref;
}

}  // namespace

void linear_forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                    const TensorRef& state) {
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const TensorRef kv = square_of<C>(workspace, problem, state);
    const TensorRef k = only_visible<C>(workspace, problem.k, problem.key_mask);
    multiply_batches(workspace, transposed_last(k), only_visible<C>(workspace, problem.v, problem.key_mask), 1, kv);
    const double factor = problem.score_scale / problem.divisor;
    multiply_batches(workspace, only_visible<C>(workspace, problem.q, problem.query_mask), kv, factor, out);
  });
}

// dq = κ G (kᵀ v)ᵀ      dk = κ v (qᵀ G)ᵀ      dv = κ k (qᵀ G)
void linear_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef&, const TensorRef& state,
                     const TensorRef& grad, const AttentionGradients& gradients) {
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const double factor = problem.score_scale / problem.divisor;
    const TensorRef g = only_visible<C>(workspace, grad, problem.query_mask);
    if (gradients.dq.present()) {
      const TensorRef kv = square_of<C>(workspace, problem, state);
      multiply_batches(workspace, g, transposed_last(kv), factor, gradients.dq);
    }
    if (!gradients.dk.present() && !gradients.dv.present()) return;
    const TensorRef qg = square_of<C>(workspace, problem, {});
    multiply_batches(workspace, transposed_last(only_visible<C>(workspace, problem.q, problem.query_mask)), g, 1, qg);
    if (gradients.dk.present()) {
      multiply_batches(workspace, only_visible<C>(workspace, problem.v, problem.key_mask), transposed_last(qg), factor,
                       gradients.dk);
    }
    if (gradients.dv.present()) {
      multiply_batches(workspace, only_visible<C>(workspace, problem.k, problem.key_mask), qg, factor, gradients.dv);
    }
  });
}

}  // namespace polygrad::cuda::attention
