// The backward of attention on tensor cores; see attention_mma.h. The scores are recomputed by two kernels: one whose
// rows are queries, for dq, and one whose rows are keys, for dk and dv. So every number is summed up by one thread, in
// an order that depends on the shape alone.
#pragma once

#include "ops/cuda/attention_mma.h"
#include "ops/cuda/attention_mma_launch.h"

namespace polygrad::cuda::attention {

// What softmax's gradient needs of kCount queries of a thread.
template <int kCount>
struct SoftmaxRows {
  float offset[kCount], inverse[kCount], inner[kCount];  // offset: -base · log2 e

  __device__ __forceinline__ void load(const Backward<float>& s, int b, int h, int at, int query) {
    const Problem<float>& p = s.p;
    const std::int64_t row = (b * p.heads + h) * p.queries + query;
    const float* const maximum = static_cast<const float*>(s.state.data) + row;
    const bool present = query < p.queries;
    const float base = present ? maximum[0] : 0.0f;
    offset[at] = base == -math::from_bits(0x7f800000u) ? 0.0f : -base * kLog2E;
    inverse[at] = present ? maximum[p.batch * p.heads * p.queries] : 0.0f;
    inner[at] = present ? static_cast<const float*>(s.inner.data)[row] : 0.0f;
  }
};
template <>
struct SoftmaxRows<0> {};

// From scores and dP = Z∘(dO·v) to weights without dropout, in the scores' place, and dS, in dP's.
template <class Phi, int kRows, bool kKeysDown, int kCount>
__device__ __forceinline__ void pair_gradients(const Problem<float>& p, const SoftmaxRows<kCount>& rows,
                                               Scores<kRows>& scores, Scores<kRows>& upstream) {
#pragma unroll
  for (int e = 0; e < 8 * kRows; ++e) {
    const int m = e / 8, n = e / 4 % 2, i = e % 4;
    float &x = scores[m][n][i], &up = upstream[m][n][i];
    if constexpr (std::is_same_v<Phi, Softmax>) {
      const int at = kKeysDown ? 2 * n + i % 2 : 2 * m + i / 2;
      x = mma::exp2(math::fma(x, kLog2E, rows.offset[at])) * rows.inverse[at];
      up = x * (up - rows.inner[at]);
    } else {
      up *= Phi::derivative(x) * p.inverse_divisor;
      x = Phi::value(x) * p.inverse_divisor;
    }
  }
}

// What both kernels do with 16 columns of a tile: `own` and `own_values` are the warp's rows, `tile` and `tile_values`
// the other side's. scores becomes weights as they meet dO, upstream dS.
template <class T, int kWidth, class Phi, int kRows, bool kKeysDown, int kCount, int kKept, int kKeptValues>
__device__ __forceinline__ void recompute(const Problem<float>& p, const Pairs<kKeysDown>& pairs, bool partial,
                                          const SoftmaxRows<kCount>& softmax, const Operand<kRows, kWidth, kKept>& own,
                                          const unsigned char* tile,
                                          const Operand<kRows, kWidth, kKeptValues>& own_values,
                                          const unsigned char* tile_values, int step, Scores<kRows>& scores,
                                          Scores<kRows>& upstream) {
  multiply_rows<T, kWidth, kRows>(own, tile, step, scores);
  multiply_rows<T, kWidth, kRows>(own_values, tile_values, step, upstream);
  const std::uint32_t seen = partial ? visible_pairs<kRows>(p, pairs) : ~0u;
  scale_scores<T, kRows>(p, pairs, seen, scores);
  const bool drops = p.dropout.threshold != 0;
  const std::uint32_t kept = drops ? kept_pairs<kRows>(p, pairs) : ~0u;
  if (drops) drop<kRows>(p, kept, upstream);
  pair_gradients<Phi, kRows, kKeysDown>(p, softmax, scores, upstream);
  if (drops) drop<kRows>(p, kept, scores);
  if (partial) {
    set_hidden<kRows>(seen, 0, scores);
    set_hidden<kRows>(seen, 0, upstream);
  }
}

// Shared memory: the block's rows of q and of dO, and two tiles of keys and of values.
template <class T, int kWidth, class Phi>
__global__ void __launch_bounds__(kMostWarps* kWarp, (kBlocks<Kernel::queries, kWidth>))
    queries_kernel(const __grid_constant__ Backward<float> s, WrittenHeads<float> dq, Alignment wide) {
  constexpr int kRows = kRowBlocks<Kernel::queries, kWidth>;
  constexpr bool kSoftmax = std::is_same_v<Phi, Softmax>;
  const Problem<float>& p = s.p;
  const Sizes sizes(p);
  const RowsOfBlock block = rows_of_block<kRows>(sizes, sizes.queries);
  const int b = block.b, h = block.h, first = block.first + warp_of_thread() * 16 * kRows;
  const int rows_of_all = static_cast<int>(blockDim.x) / kWarp * 16 * kRows;
  unsigned char* const own = dynamic_shared();
  unsigned char* const own_grad = own + Tile<kWidth>::bytes(rows_of_all);
  unsigned char* const tiles = own_grad + Tile<kWidth>::bytes(rows_of_all);
  const HeadRows rows_q(p.q, b, h), rows_k(p.k, b, h), rows_v(p.v, b, h), rows_grad(s.grad, b, h);
  const auto copy_tile = [&](int key, int stage) {
    unsigned char* const to = tiles + 2 * stage * Tile<kWidth>::bytes(kTokens);
    copy_rows<kWidth>(rows_k, key, sizes.keys, sizes.width, kTokens, wide.loads, to);
    copy_rows<kWidth>(rows_v, key, sizes.keys, sizes.width, kTokens, wide.loads, to + Tile<kWidth>::bytes(kTokens));
  };
  copy_rows<kWidth>(rows_q, block.first, sizes.queries, sizes.width, rows_of_all, wide.loads, own);
  copy_rows<kWidth>(rows_grad, block.first, sizes.queries, sizes.width, rows_of_all, wide.loads, own_grad);
  copy_tile(0, 0);
  mma::wait_for_copies();
  __syncthreads();
  Operand<kRows, kWidth, kWidth / 16> q, grad;
  q.load(own, warp_of_thread() * 16 * kRows);
  grad.load(own_grad, warp_of_thread() * 16 * kRows);
  SoftmaxRows<kSoftmax ? 2 * kRows : 0> softmax;
  if constexpr (kSoftmax) {
#pragma unroll
    for (int r = 0; r < 2 * kRows; ++r) softmax.load(s, b, h, r, first + 8 * r + lane_of_thread() / 4);
  }
  Sums<kRows, kWidth> sums = {};
  const bool idle = first >= sizes.queries;
  const bool checked = p.has_masks() || first + 16 * kRows > sizes.queries;
  int stage = 0;
  for (int key = 0; key < sizes.keys; key += kTokens, stage ^= 1) {
    if (key + kTokens < sizes.keys) copy_tile(key + kTokens, stage ^ 1);
    const unsigned char* const keys = tiles + 2 * stage * Tile<kWidth>::bytes(kTokens);
    const unsigned char* const values = keys + Tile<kWidth>::bytes(kTokens);
    const int steps = idle ? 0 : sizes.keys - key < kTokens ? sizes.keys - key : kTokens;
#pragma unroll 1
    for (int step = 0; step < steps; step += kStep) {
      const Pairs<false> pairs{b, h, first + lane_of_thread() / 4, key + step + lane_of_thread() % 4 * 2};
      Scores<kRows> scores, upstream;
      recompute<T, kWidth, Phi>(p, pairs, checked || step + kStep > steps, softmax, q, keys, grad, values, step, scores,
                                upstream);
      Weights<kRows> weights;
      round_scores<T, kRows>(upstream, weights);
      add_product<T, kWidth, kRows>(weights, keys, step, sums);
    }
    mma::wait_for_copies();
    __syncthreads();
  }
  float factor[2 * kRows];
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) factor[r] = p.score_scale;
  write_sums<T, kWidth, kRows>(dq, dq.at(b, h), first, sizes.queries, sizes.width, wide.stores, sums, factor);
}

// Shared memory: the block's rows of k and of v, and two tiles of q and of dO. dk or dv may be absent.
template <class T, int kWidth, class Phi>
__global__ void __launch_bounds__(kMostWarps* kWarp, (kBlocks<Kernel::keys, kWidth>))
    keys_kernel(const __grid_constant__ Backward<float> s, WrittenHeads<float> dk, WrittenHeads<float> dv,
                Alignment wide) {
  constexpr int kRows = kRowBlocks<Kernel::keys, kWidth>;
  constexpr bool kSoftmax = std::is_same_v<Phi, Softmax>;
  const Problem<float>& p = s.p;
  const Sizes sizes(p);
  const RowsOfBlock block = rows_of_block<kRows>(sizes, sizes.keys);
  const int b = block.b, h = block.h, first = block.first + warp_of_thread() * 16 * kRows;
  const int rows_of_all = static_cast<int>(blockDim.x) / kWarp * 16 * kRows;
  unsigned char* const own = dynamic_shared();
  unsigned char* const own_values = own + Tile<kWidth>::bytes(rows_of_all);
  unsigned char* const tiles = own_values + Tile<kWidth>::bytes(rows_of_all);
  const HeadRows rows_q(p.q, b, h), rows_k(p.k, b, h), rows_v(p.v, b, h), rows_grad(s.grad, b, h);
  const auto copy_tile = [&](int query, int stage) {
    unsigned char* const to = tiles + 2 * stage * Tile<kWidth>::bytes(kTokens);
    copy_rows<kWidth>(rows_q, query, sizes.queries, sizes.width, kTokens, wide.loads, to);
    copy_rows<kWidth>(rows_grad, query, sizes.queries, sizes.width, kTokens, wide.loads,
                      to + Tile<kWidth>::bytes(kTokens));
  };
  copy_rows<kWidth>(rows_k, block.first, sizes.keys, sizes.width, rows_of_all, wide.loads, own);
  copy_rows<kWidth>(rows_v, block.first, sizes.keys, sizes.width, rows_of_all, wide.loads, own_values);
  copy_tile(0, 0);
  mma::wait_for_copies();
  __syncthreads();
  Operand<kRows, kWidth, (kWidth == 128 ? 7 : kWidth / 16)> k;
  Operand<kRows, kWidth, (kRows * kWidth < 128 ? kWidth / 16 : 0)> v;
  k.load(own, warp_of_thread() * 16 * kRows);
  v.load(own_values, warp_of_thread() * 16 * kRows);
  Sums<kRows, kWidth> sums_k = {}, sums_v = {};
  const bool idle = first >= sizes.keys;
  const bool checked = p.has_masks() || first + 16 * kRows > sizes.keys;
  int stage = 0;
  for (int query = 0; query < sizes.queries; query += kTokens, stage ^= 1) {
    if (query + kTokens < sizes.queries) copy_tile(query + kTokens, stage ^ 1);
    const unsigned char* const queries = tiles + 2 * stage * Tile<kWidth>::bytes(kTokens);
    const unsigned char* const grads = queries + Tile<kWidth>::bytes(kTokens);
    const int steps = idle ? 0 : sizes.queries - query < kTokens ? sizes.queries - query : kTokens;
#pragma unroll 1
    for (int step = 0; step < steps; step += kStep) {
      const Pairs<true> pairs{b, h, first + lane_of_thread() / 4, query + step + lane_of_thread() % 4 * 2};
      SoftmaxRows<kSoftmax ? 4 : 0> softmax;
      if constexpr (kSoftmax) {
#pragma unroll
        for (int c = 0; c < 4; ++c) softmax.load(s, b, h, c, pairs.col_of(c / 2, c % 2));
      }
      Scores<kRows> scores, upstream;
      recompute<T, kWidth, Phi>(p, pairs, checked || step + kStep > steps, softmax, k, queries, v, grads, step, scores,
                                upstream);
      Weights<kRows> weights;
      if (dv.present()) {
        round_scores<T, kRows>(scores, weights);
        add_product<T, kWidth, kRows>(weights, grads, step, sums_v);
      }
      if (dk.present()) {
        round_scores<T, kRows>(upstream, weights);
        add_product<T, kWidth, kRows>(weights, queries, step, sums_k);
      }
    }
    mma::wait_for_copies();
    __syncthreads();
  }
  float factor[2 * kRows];
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) factor[r] = p.score_scale;
  if (dk.present()) {
    write_sums<T, kWidth, kRows>(dk, dk.at(b, h), first, sizes.keys, sizes.width, wide.stores, sums_k, factor);
  }
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) factor[r] = 1;
  if (dv.present()) {
    write_sums<T, kWidth, kRows>(dv, dv.at(b, h), first, sizes.keys, sizes.width, wide.stores, sums_v, factor);
  }
}

template <class T, int kWidth>
struct QueriesOf {
  template <class Phi>
  struct With {
    static void start(const Backward<float>& s, const TensorRef& dq, Alignment wide) {
      constexpr int kRows = 16 * kRowBlocks<Kernel::queries, kWidth>;
      const int warps = warps_for(s.p.queries, kRows);
      static std::atomic<std::uint64_t> told{0};
      allow_shared(told, queries_kernel<T, kWidth, Phi>, Tile<kWidth>::bytes(2 * kMostWarps * kRows + 4 * kTokens));
      launch_rows("attention_backward", s.p, s.p.queries, warps, kRows,
                  Tile<kWidth>::bytes(2 * warps * kRows + 4 * kTokens), queries_kernel<T, kWidth, Phi>, s,
                  WrittenHeads<float>(dq), wide);
    }
    static constexpr auto kEntry = &start;
  };
};

template <class T, int kWidth>
struct KeysOf {
  template <class Phi>
  struct With {
    static void start(const Backward<float>& s, const TensorRef& dk, const TensorRef& dv, Alignment wide) {
      constexpr int kRows = 16 * kRowBlocks<Kernel::keys, kWidth>;
      const int warps = warps_for(s.p.keys, kRows);
      static std::atomic<std::uint64_t> told{0};
      allow_shared(told, keys_kernel<T, kWidth, Phi>, Tile<kWidth>::bytes(2 * kMostWarps * kRows + 4 * kTokens));
      launch_rows("attention_backward", s.p, s.p.keys, warps, kRows,
                  Tile<kWidth>::bytes(2 * warps * kRows + 4 * kTokens), keys_kernel<T, kWidth, Phi>, s,
                  WrittenHeads<float>(dk), WrittenHeads<float>(dv), wide);
    }
    static constexpr auto kEntry = &start;
  };
};

template <class T>
void mma_backward_queries(const AttentionProblem& problem, const TensorRef& state, const TensorRef& inner,
                          const TensorRef& grad, const TensorRef& dq) {
  const Backward<float> s{Problem<float>(problem), Heads<float>(grad), Input<float>(state), Input<float>(inner)};
  const Alignment wide = alignment_of({problem.q, problem.k, problem.v, grad}, {dq});
  dispatch_width(problem.q.sizes[3], [&](auto width) {
    entry_for<QueriesOf<T, decltype(width)::value>::template With>(problem.phi)(s, dq, wide);
  });
}

template <class T>
void mma_backward_keys(const AttentionProblem& problem, const TensorRef& state, const TensorRef& inner,
                       const TensorRef& grad, const TensorRef& dk, const TensorRef& dv) {
  const Backward<float> s{Problem<float>(problem), Heads<float>(grad), Input<float>(state), Input<float>(inner)};
  const Alignment wide = alignment_of({problem.q, problem.k, problem.v, grad}, {dk, dv});
  dispatch_width(problem.q.sizes[3], [&](auto width) {
    entry_for<KeysOf<T, decltype(width)::value>::template With>(problem.phi)(s, dk, dv, wide);
  });
}

}  // namespace polygrad::cuda::attention
