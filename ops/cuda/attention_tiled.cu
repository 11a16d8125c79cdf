// The tiled path of attention on a GPU, without tensor cores: exact, and no N x N matrix in memory, forward or
// backward.
//
// Forward: a block has 32 queries and goes over all keys. Backward, recomputing the scores: a block has 32 queries for
// dq, or 32 keys for dk and dv; dbias has a kernel of its own, which adds up the batches that share it. Nothing is
// added by two blocks.
#include "ops/cuda/attention_paths.h"
#include "ops/cuda/attention_tile.h"

namespace polygrad::cuda::attention {
namespace {

// Which head and tile a block has: blockIdx.x = (b·H + h)·tiles + tile; blockIdx.y: the part of the head's columns.
struct Place {
  std::int64_t b, h, first, from;
};
template <class C>
__device__ __forceinline__ Place place_of_block(const Problem<C>& p, std::int64_t rows) {
  const std::int64_t tiles = (rows + kTile - 1) / kTile, head = blockIdx.x / tiles;
  return {head / p.heads, head % p.heads, blockIdx.x % tiles * kTile,
          static_cast<std::int64_t>(blockIdx.y) * kColumns<C>};
}
template <class C>
Grid grid_for(const Problem<C>& p, std::int64_t rows) {
  return {.x = p.batch * p.heads * ceil_div(rows, kTile), .y = ceil_div(p.width, kColumns<C>)};
}

// --- forward
// ----------------------------------------------------------------------------------------------------------

// state: softmax's (2, B, H, Nq), or absent.
template <class C>
__global__ void __launch_bounds__(kTileThreads, 1) forward_kernel(Problem<C> p, WrittenHeads<C> out, Output<C> state) {
  __shared__ SharedTiles<C> shared;
  const Place place = place_of_block(p, p.queries);
  const std::int64_t b = place.b, h = place.h, first_row = place.first + kTileRows * warp_of_thread();
  Accumulators<C> sums = {};
  RowState<C> rows[kTileRows];
  for (std::int64_t col = 0; col < p.keys; col += kTile) {
    C weights[kTileRows];
    tile_product(shared, p.q, p.q.at(b, h), place.first, p.queries, p.k, p.k.at(b, h), col, p.keys, p.width, weights);
    const std::int64_t j = col + lane_of_thread();
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const std::int64_t i = first_row + r;
      const bool seen = visible(p, b, i, j);
      if (p.is_softmax()) {
        C correction;
        const C s = seen ? score(p, b, h, i, j, weights[r]) : -math::from_bits(0x7f800000u);
        weights[r] = rows[r].take(s, &correction);
#pragma unroll
        for (int k = 0; k < kColumns<C> / kWarp; ++k) sums[r][k] *= correction;
      } else {
        weights[r] = seen ? phi_of(p.phi, score(p, b, h, i, j, weights[r]), p.inverse_divisor).value : C(0);
      }
      if (seen) weights[r] *= dropout_factor(p, b, h, i, j);
    }
    accumulate(shared, weights, p.v, p.v.at(b, h), col, p.keys, place.from, p.width, sums);
  }
  C factor[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    factor[r] = p.is_softmax() ? rows[r].inverse() : C(1);
    const std::int64_t i = first_row + r, at = (b * p.heads + h) * p.queries + i;
    if (state.present() && i < p.queries && lane_of_thread() == 0 && blockIdx.y == 0) {
      state.write(at, rows[r].largest);
      state.write(p.batch * p.heads * p.queries + at, factor[r]);
    }
  }
  write_rows(out, out.at(b, h), place.first, p.queries, place.from, p.width, sums, factor);
}

// --- backward
// ---------------------------------------------------------------------------------------------------------

// inner[b, h, i] = dO_i · O_i, a warp a row.
template <class C>
__global__ void inner_kernel(Problem<C> p, Heads<C> out, Heads<C> grad, Output<C> inner) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kTileThreads / kWarp) + warp_of_thread();
  if (row >= p.batch * p.heads * p.queries) return;
  const std::int64_t head = row / p.queries, i = row % p.queries, b = head / p.heads, h = head % p.heads;
  C sum = 0;
  for (std::int64_t e = lane_of_thread(); e < p.width; e += kWarp) {
    sum += grad.data[grad.at(b, h) + i * grad.row + e] * out.data[out.at(b, h) + i * out.row + e];
  }
  sum = warp_sum(sum);
  if (lane_of_thread() == 0) inner.write(row, sum);
}

// From the products q_i·k_j and dO_i·v_j of a pair: Z∘P, which meets dO, and dS.
template <class C>
struct PairGradient {
  C weight = 0, score = 0;
};
template <class C>
__device__ __forceinline__ PairGradient<C> pair_gradient(const Backward<C>& s, std::int64_t b, std::int64_t h,
                                                         std::int64_t i, std::int64_t j, C product, C upstream) {
  const Problem<C>& p = s.p;
  if (!visible(p, b, i, j)) return {};
  const C x = score(p, b, h, i, j, product), keep = dropout_factor(p, b, h, i, j);
  if (!p.is_softmax()) {
    const PhiResult<C> phi = phi_of(p.phi, x, p.inverse_divisor);
    return {phi.value * keep, upstream * keep * phi.derivative};
  }
  const std::int64_t row = (b * p.heads + h) * p.queries + i;
  const RowState<C> state{s.state[row], C(0)};
  const C weight = math::exp(x - state.base()) * s.state[p.batch * p.heads * p.queries + row];
  return {weight * keep, weight * (upstream * keep - s.inner[row])};
}

template <class C>
__global__ void __launch_bounds__(kTileThreads, 1) queries_kernel(Backward<C> s, WrittenHeads<C> dq) {
  __shared__ SharedTiles<C> shared;
  const Problem<C>& p = s.p;
  const Place place = place_of_block(p, p.queries);
  const std::int64_t b = place.b, h = place.h;
  Accumulators<C> sums = {};
  for (std::int64_t col = 0; col < p.keys; col += kTile) {
    C product[kTileRows], upstream[kTileRows];
    tile_product(shared, p.q, p.q.at(b, h), place.first, p.queries, p.k, p.k.at(b, h), col, p.keys, p.width, product);
    tile_product(shared, s.grad, s.grad.at(b, h), place.first, p.queries, p.v, p.v.at(b, h), col, p.keys, p.width,
                 upstream);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      product[r] = pair_gradient(s, b, h, place.first + kTileRows * warp_of_thread() + r, col + lane_of_thread(),
                                 product[r], upstream[r])
                       .score;
    }
    accumulate(shared, product, p.k, p.k.at(b, h), col, p.keys, place.from, p.width, sums);
  }
  C factor[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) factor[r] = p.score_scale;
  write_rows(dq, dq.at(b, h), place.first, p.queries, place.from, p.width, sums, factor);
}

// In these tiles the rows are keys, and the columns queries. dk or dv may be absent.
template <class C>
__global__ void __launch_bounds__(kTileThreads, 1) keys_kernel(Backward<C> s, WrittenHeads<C> dk, WrittenHeads<C> dv) {
  __shared__ SharedTiles<C> shared;
  const Problem<C>& p = s.p;
  const Place place = place_of_block(p, p.keys);
  const std::int64_t b = place.b, h = place.h;
  Accumulators<C> of_k = {}, of_v = {};
  for (std::int64_t row = 0; row < p.queries; row += kTile) {
    C product[kTileRows], upstream[kTileRows];
    tile_product(shared, p.k, p.k.at(b, h), place.first, p.keys, p.q, p.q.at(b, h), row, p.queries, p.width, product);
    tile_product(shared, p.v, p.v.at(b, h), place.first, p.keys, s.grad, s.grad.at(b, h), row, p.queries, p.width,
                 upstream);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      const PairGradient<C> pair = pair_gradient(
          s, b, h, row + lane_of_thread(), place.first + kTileRows * warp_of_thread() + r, product[r], upstream[r]);
      product[r] = pair.weight;
      upstream[r] = pair.score;
    }
    if (dv.present()) {
      accumulate(shared, product, s.grad, s.grad.at(b, h), row, p.queries, place.from, p.width, of_v);
    }
    if (dk.present()) accumulate(shared, upstream, p.q, p.q.at(b, h), row, p.queries, place.from, p.width, of_k);
  }
  C scale[kTileRows], one[kTileRows];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) scale[r] = p.score_scale, one[r] = C(1);
  if (dk.present()) write_rows(dk, dk.at(b, h), place.first, p.keys, place.from, p.width, of_k, scale);
  if (dv.present()) write_rows(dv, dv.at(b, h), place.first, p.keys, place.from, p.width, of_v, one);
}

// dbias (G, H, Nq, Nk): a block has a tile of one (g, h), and goes over the batches that share it.
template <class C>
__global__ void __launch_bounds__(kTileThreads, 1) bias_kernel(Backward<C> s, Output<C> dbias) {
  __shared__ SharedTiles<C> shared;
  const Problem<C>& p = s.p;
  const std::int64_t across = (p.keys + kTile - 1) / kTile, down = (p.queries + kTile - 1) / kTile;
  const std::int64_t col = blockIdx.x % across * kTile, row = blockIdx.x / across % down * kTile;
  const std::int64_t head = blockIdx.x / across / down, g = head / p.heads, h = head % p.heads;
  C sums[kTileRows] = {};
  for (std::int64_t b = g; b < p.batch; b += p.bias_groups) {
    C product[kTileRows], upstream[kTileRows];
    tile_product(shared, p.q, p.q.at(b, h), row, p.queries, p.k, p.k.at(b, h), col, p.keys, p.width, product);
    tile_product(shared, s.grad, s.grad.at(b, h), row, p.queries, p.v, p.v.at(b, h), col, p.keys, p.width, upstream);
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      sums[r] += pair_gradient(s, b, h, row + kTileRows * warp_of_thread() + r, col + lane_of_thread(), product[r],
                               upstream[r])
                     .score;
    }
  }
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const std::int64_t i = row + kTileRows * warp_of_thread() + r, j = col + lane_of_thread();
    if (i < p.queries && j < p.keys) dbias.write((head * p.queries + i) * p.keys + j, sums[r]);
  }
}

}  // namespace

void tiled_forward(Workspace&, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state) {
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> p(problem);
    launch("attention", grid_for(p, p.queries), kTileThreads, 0, forward_kernel<C>, p, WrittenHeads<C>(out),
           Output<C>(state));
  });
}

TensorRef inner_products(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                         const TensorRef& grad) {
  TensorRef inner;
  if (problem.phi != attention_activation::kSoftmax) return inner;
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> p(problem);
    const std::int64_t rows = p.batch * p.heads * p.queries;
    inner.data = workspace.allocate<C>(rows);
    inner.dtype = sizeof(C) == 8 ? DType::f64 : DType::f32;
    launch("attention_backward", {.x = ceil_div(rows, kTileThreads / kWarp)}, kTileThreads, 0, inner_kernel<C>, p,
           Heads<C>(out), Heads<C>(grad), Output<C>(inner));
  });
  return inner;
}

void tiled_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state,
                    const TensorRef& grad, const AttentionGradients& gradients) {
  dispatch_compute(problem.q.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Problem<C> p(problem);
    const Backward<C> s{p, Heads<C>(grad), Input<C>(state), Input<C>(inner_products(workspace, problem, out, grad))};
    if (gradients.dq.present()) {
      launch("attention_backward", grid_for(p, p.queries), kTileThreads, 0, queries_kernel<C>, s,
             WrittenHeads<C>(gradients.dq));
    }
    if (gradients.dk.present() || gradients.dv.present()) {
      launch("attention_backward", grid_for(p, p.keys), kTileThreads, 0, keys_kernel<C>, s,
             WrittenHeads<C>(gradients.dk), WrittenHeads<C>(gradients.dv));
    }
    if (gradients.dbias.present()) {
      const std::int64_t tiles = ceil_div(p.queries, kTile) * ceil_div(p.keys, kTile);
      launch("attention_backward", {.x = p.bias_groups * p.heads * tiles}, kTileThreads, 0, bias_kernel<C>, s,
             Output<C>(gradients.dbias));
    }
  });
}

}  // namespace polygrad::cuda::attention
