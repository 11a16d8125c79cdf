// Attention with its matrix in memory: the map, and the materialised path, which follows the formulas as they are
// written, with products of whole matrices.
#include "ops/cuda/attention_paths.h"
#include "ops/cuda/attention_tile.h"
#include "ops/cuda/products.h"

namespace polygrad::cuda::attention {
namespace {

// A row of the matrix (B, H, Nq, Nk), which a block has.
struct MatrixRow {
  std::int64_t b, h, i, first;
};
template <class C>
__device__ __forceinline__ MatrixRow row_of_block(const Problem<C>& p) {
  const std::int64_t row = blockIdx.x, head = row / p.queries;
  return {head / p.heads, head % p.heads, row % p.queries, row * p.keys};
}

// From products q_i·k_j to P without dropout, in place.
template <class C>
__global__ void probabilities_kernel(Problem<C> p, Input<C> products, Output<C> to) {
  const MatrixRow row = row_of_block(p);
  if (!p.is_softmax()) {
    for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
      C value = 0;
      if (visible(p, row.b, row.i, j)) {
        value = phi_of(p.phi, score(p, row.b, row.h, row.i, j, products[row.first + j]), p.inverse_divisor).value;
      }
      to.write(row.first + j, value);
    }
    return;
  }
  RowState<C> state;
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    if (!visible(p, row.b, row.i, j)) continue;
    const C s = score(p, row.b, row.h, row.i, j, products[row.first + j]);
    state.largest = s > state.largest ? s : state.largest;
  }
  state.largest = block_reduce<kTileThreads>(state.largest, Largest());
  C sum = 0;
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    C e = 0;
    if (visible(p, row.b, row.i, j)) {
      e = math::exp(score(p, row.b, row.h, row.i, j, products[row.first + j]) - state.base());
    }
    to.write(row.first + j, e);
    sum += e;
  }
  state.sum = block_sum<kTileThreads>(sum);
  const Input<C> written{to};
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    to.write(row.first + j, written[row.first + j] * state.inverse());
  }
}

// Z∘from
template <class C>
__global__ void drop_kernel(Problem<C> p, Input<C> from, Output<C> to) {
  const MatrixRow row = row_of_block(p);
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    to.write(row.first + j, from[row.first + j] * dropout_factor(p, row.b, row.h, row.i, j));
  }
}

// dS from P, the products q_i·k_j (elementwise φ only) and dP = dO_i·v_j, in dP's place.
template <class C>
__global__ void score_gradient_kernel(Problem<C> p, Input<C> probabilities, Input<C> products, Input<C> dp,
                                      Output<C> ds) {
  const MatrixRow row = row_of_block(p);
  if (!p.is_softmax()) {
    for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
      C value = 0;
      if (visible(p, row.b, row.i, j)) {
        const C s = score(p, row.b, row.h, row.i, j, products[row.first + j]);
        value = dp[row.first + j] * dropout_factor(p, row.b, row.h, row.i, j) *
                phi_of(p.phi, s, p.inverse_divisor).derivative;
      }
      ds.write(row.first + j, value);
    }
    return;
  }
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    sum += static_cast<double>(probabilities[row.first + j]) *
           static_cast<double>(dp[row.first + j] * dropout_factor(p, row.b, row.h, row.i, j));
  }
  const C inner = static_cast<C>(block_sum<kTileThreads>(sum));
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    const C upstream = dp[row.first + j] * dropout_factor(p, row.b, row.h, row.i, j);
    ds.write(row.first + j, probabilities[row.first + j] * (upstream - inner));
  }
}

// dbias[g] = Σ dS[b] over b = g, g + G, …
template <class C>
__global__ void bias_kernel(std::int64_t batch, std::int64_t groups, std::int64_t area, Input<C> ds, Output<C> dbias) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (i >= groups * area) return;
  const std::int64_t g = i / area, place = i % area;
  C sum = 0;
  for (std::int64_t b = g; b < batch; b += groups) sum += ds[b * area + place];
  dbias.write(i, sum);
}

// (B, H, Nq, Nk), contiguous; data null: fresh scratch memory.
template <class C>
TensorRef matrix(Workspace& workspace, const Problem<C>& p, void* data = nullptr) {
  TensorRef ref;
  const std::int64_t sizes[4] = {p.batch, p.heads, p.queries, p.keys};
  ref.dtype = sizeof(C) == 8 ? DType::f64 : DType::f32;
  ref.dim = 4;
  std::int64_t step = 1;
  for (int i = 3; i >= 0; step *= sizes[i], --i) {
    ref.sizes[i] = sizes[i];
    ref.strides[i] = step;
  }
  ref.data = data != nullptr ? data : workspace.allocate<C>(step);
  return ref;
}

template <class C>
void probabilities(Workspace& workspace, const AttentionProblem& problem, const TensorRef& to) {
  const Problem<C> p(problem);
  multiply_batches(workspace, problem.q, transposed_last(problem.k), 1, to);
  launch("attention_map", {.x = p.batch * p.heads * p.queries}, kTileThreads, 0, probabilities_kernel<C>, p,
         Input<C>(to), Output<C>(to));
}

// Z∘P: P itself without dropout.
template <class C>
TensorRef dropped(Workspace& workspace, const Problem<C>& p, const TensorRef& probabilities) {
  if (p.dropout.threshold == 0) return probabilities;
  const TensorRef result = matrix(workspace, p);
  launch("attention_dropout", {.x = p.batch * p.heads * p.queries}, kTileThreads, 0, drop_kernel<C>, p,
         Input<C>(probabilities), Output<C>(result));
  return result;
}

}  // namespace

void map(Workspace& workspace, const AttentionProblem& problem, const TensorRef& map) {
  dispatch_compute(map.dtype, [&](auto tag) { probabilities<decltype(tag)>(workspace, problem, map); });
}

void materialised_forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                          const TensorRef& state) {
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> p(problem);
    const TensorRef all = matrix(workspace, p, state.data);
    probabilities<C>(workspace, problem, all);
    multiply_batches(workspace, dropped(workspace, p, all), problem.v, 1, out);
  });
}

void materialised_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef&,
                           const TensorRef& state, const TensorRef& grad, const AttentionGradients& gradients) {
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> p(problem);
    const TensorRef all = matrix(workspace, p, state.data), ds = matrix(workspace, p);
    if (gradients.dv.present()) {
      multiply_batches(workspace, transposed_last(dropped(workspace, p, all)), grad, 1, gradients.dv);
    }
    multiply_batches(workspace, grad, transposed_last(problem.v), 1, ds);
    TensorRef products = all;
    if (!p.is_softmax()) {
      products = matrix(workspace, p);
      multiply_batches(workspace, problem.q, transposed_last(problem.k), 1, products);
    }
    launch("attention_backward", {.x = p.batch * p.heads * p.queries}, kTileThreads, 0, score_gradient_kernel<C>, p,
           Input<C>(all), Input<C>(products), Input<C>(ds), Output<C>(ds));
    if (gradients.dq.present()) {
      multiply_batches(workspace, ds, problem.k, problem.score_scale, gradients.dq);
    }
    if (gradients.dk.present()) {
      multiply_batches(workspace, transposed_last(ds), problem.q, problem.score_scale, gradients.dk);
    }
    if (gradients.dbias.present()) {
      const std::int64_t area = p.heads * p.queries * p.keys;
      launch("attention_backward", {.x = ceil_div(p.bias_groups * area, kTileThreads)}, kTileThreads, 0, bias_kernel<C>,
             p.batch, p.bias_groups, area, Input<C>(ds), Output<C>(gradients.dbias));
    }
  });
}

}  // namespace polygrad::cuda::attention
