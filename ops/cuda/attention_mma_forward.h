// The forward of attention on tensor cores; see attention_mma.h. Read next: attention_mma_backward.h.
#pragma once

#include "ops/cuda/attention_mma.h"
#include "ops/cuda/attention_mma_launch.h"

namespace polygrad::cuda::attention {

// Softmax of a warp's rows while their scores come: weights are e^(score - base). The base of a row follows its maximum
// only when that is kSlack above, so that results are rarely scaled again; a row's numbers depend on its own scores
// alone.
template <int kRows>
struct OnlineRows {
  static constexpr float kSlack = 4;
  float base[2 * kRows], largest[2 * kRows], sum[2 * kRows];  // largest and sum: of this thread's columns
  __device__ __forceinline__ OnlineRows() {
#pragma unroll
    for (int r = 0; r < 2 * kRows; ++r) base[r] = largest[r] = -math::from_bits(0x7f800000u), sum[r] = 0;
  }

  // From scores, -infinity where hidden, to weights.
  template <int kWidth>
  __device__ __forceinline__ void take(Scores<kRows>& scores, Sums<kRows, kWidth>& results) {
    bool grown = false;
#pragma unroll
    for (int r = 0; r < 2 * kRows; ++r) {
      const float *const left = &scores[r / 2][0][r % 2 * 2], *const right = &scores[r / 2][1][r % 2 * 2];
      largest[r] = larger(largest[r], larger(larger(left[0], left[1]), larger(right[0], right[1])));
      grown |= largest[r] > base[r] + kSlack;
    }
    if (__any_sync(kAllLanes, grown)) rise<kWidth>(results);
#pragma unroll
    for (int r = 0; r < 2 * kRows; ++r) {
      const float offset = base[r] == -math::from_bits(0x7f800000u) ? 0.0f : -base[r] * kLog2E;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = scores[r / 2][i / 2][r % 2 * 2 + i % 2];
        x = mma::exp2(math::fma(x, kLog2E, offset));
        sum[r] += x;
      }
    }
  }
  // What the results of row r are multiplied by in the end; 0 for a row that sees nothing. *maximum and *inverse are
  // the state that the backward reads. All lanes call it.
  __device__ __forceinline__ float finish(int r, float* maximum, float* inverse) const {
    float all = sum[r] + __shfl_xor_sync(kAllLanes, sum[r], 1);
    all += __shfl_xor_sync(kAllLanes, all, 2);
    *maximum = largest_of_row(r);
    const float factor = all == 0 ? 0.0f : 1 / all;
    *inverse = all == 0 ? 0.0f : factor * mma::exp2((*maximum - base[r]) * kLog2E);
    return factor;
  }

 private:
  static __device__ __forceinline__ float larger(float a, float b) { return b > a ? b : a; }

  __device__ __forceinline__ float largest_of_row(int r) const {
    const float two = larger(largest[r], __shfl_xor_sync(kAllLanes, largest[r], 1));
    return larger(two, __shfl_xor_sync(kAllLanes, two, 2));
  }

  template <int kWidth>
  __device__ __forceinline__ void rise(Sums<kRows, kWidth>& results) {
#pragma unroll
    for (int r = 0; r < 2 * kRows; ++r) {
      float top = largest_of_row(r);
      if (!(top > base[r] + kSlack)) top = base[r];
      // The first time there is nothing to scale; and infinity less itself would be NaN.
      const float factor = top == base[r] ? 1.0f : mma::exp2((base[r] - top) * kLog2E);
      base[r] = top;
      sum[r] *= factor;
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
        results[r / 2][n][r % 2 * 2] *= factor;
        results[r / 2][n][r % 2 * 2 + 1] *= factor;
      }
    }
  }
};

// How many sixteens of q's columns stay in registers: as many as leave room for another block beside, or at least for
// all else.
template <int kWidth, bool kSoftmax>
inline constexpr int kKeptQueries = kWidth == 128  ? (kSoftmax ? 5 : 6)
                                    : kWidth == 64 ? (kSoftmax ? 3 : 4)
                                                   : kWidth / 16;

// Shared memory: the block's queries, and two tiles of keys and of values.
template <class T, int kWidth, class Phi>
__global__ void __launch_bounds__(kMostWarps* kWarp, (kBlocks<Kernel::forward, kWidth>))
    forward_kernel(const __grid_constant__ Problem<float> p, WrittenHeads<float> out, float* state, Alignment wide) {
  constexpr int kRows = kRowBlocks<Kernel::forward, kWidth>;
  constexpr bool kSoftmax = std::is_same_v<Phi, Softmax>;
  const Sizes sizes(p);
  const RowsOfBlock block = rows_of_block<kRows>(sizes, sizes.queries);
  const int b = block.b, h = block.h, first = block.first + warp_of_thread() * 16 * kRows;
  const int rows_of_all = static_cast<int>(blockDim.x) / kWarp * 16 * kRows;
  unsigned char* const own = dynamic_shared();
  unsigned char* const tiles = own + Tile<kWidth>::bytes(rows_of_all);
  const HeadRows rows_q(p.q, b, h), rows_k(p.k, b, h), rows_v(p.v, b, h);
  const auto copy_tile = [&](int key, int stage) {
    unsigned char* const to = tiles + 2 * stage * Tile<kWidth>::bytes(kTokens);
    copy_rows<kWidth>(rows_k, key, sizes.keys, sizes.width, kTokens, wide.loads, to);
    copy_rows<kWidth>(rows_v, key, sizes.keys, sizes.width, kTokens, wide.loads, to + Tile<kWidth>::bytes(kTokens));
  };
  copy_rows<kWidth>(rows_q, block.first, sizes.queries, sizes.width, rows_of_all, wide.loads, own);
  copy_tile(0, 0);
  mma::wait_for_copies();
  __syncthreads();
  Operand<kRows, kWidth, kKeptQueries<kWidth, kSoftmax>> q;
  q.load(own, warp_of_thread() * 16 * kRows);
  Sums<kRows, kWidth> sums = {};
  OnlineRows<kRows> online;
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
      Scores<kRows> s;
      multiply_rows<T, kWidth, kRows>(q, keys, step, s);
      const Pairs<false> pairs{b, h, first + lane_of_thread() / 4, key + step + lane_of_thread() % 4 * 2};
      const bool partial = checked || step + kStep > steps;
      const std::uint32_t seen = partial ? visible_pairs<kRows>(p, pairs) : ~0u;
      scale_scores<T, kRows>(p, pairs, seen, s);
      if constexpr (kSoftmax) {
        if (partial) set_hidden<kRows>(seen, -math::from_bits(0x7f800000u), s);
        online.template take<kWidth>(s, sums);
      } else {
#pragma unroll
        for (int e = 0; e < 8 * kRows; ++e) {
          float& x = s[e / 8][e / 4 % 2][e % 4];
          x = Phi::value(x) * p.inverse_divisor;
        }
        if (partial) set_hidden<kRows>(seen, 0, s);
      }
      if (p.dropout.threshold != 0) drop<kRows>(p, kept_pairs<kRows>(p, pairs), s);
      Weights<kRows> weights;
      round_scores<T, kRows>(s, weights);
      add_product<T, kWidth, kRows>(weights, values, step, sums);
    }
    mma::wait_for_copies();
    __syncthreads();
  }
  float factor[2 * kRows];
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) {
    factor[r] = 1;
    if constexpr (kSoftmax) {
      float maximum, inverse;
      factor[r] = online.finish(r, &maximum, &inverse);
      const int i = first + 8 * r + lane_of_thread() / 4;
      if (state == nullptr || i >= sizes.queries || lane_of_thread() % 4 != 0) continue;
      float* const row = state + (b * p.heads + h) * p.queries + i;
      row[0] = maximum;
      row[p.batch * p.heads * p.queries] = inverse;
    }
  }
  write_sums<T, kWidth, kRows>(out, out.at(b, h), first, sizes.queries, sizes.width, wide.stores, sums, factor);
}

template <class T, int kWidth>
struct ForwardOf {
  template <class Phi>
  struct With {
    static void start(const AttentionProblem& problem, const TensorRef& out, const TensorRef& state) {
      const Problem<float> p(problem);
      constexpr int kRows = 16 * kRowBlocks<Kernel::forward, kWidth>;
      const int warps = warps_for(p.queries, kRows);
      static std::atomic<std::uint64_t> told{0};
      allow_shared(told, forward_kernel<T, kWidth, Phi>, Tile<kWidth>::bytes(kMostWarps * kRows + 4 * kTokens));
      launch_rows("attention", p, p.queries, warps, kRows, Tile<kWidth>::bytes(warps * kRows + 4 * kTokens),
                  forward_kernel<T, kWidth, Phi>, p, WrittenHeads<float>(out), state.as<float>(),
                  alignment_of({problem.q, problem.k, problem.v}, {out}));
    }
    static constexpr auto kEntry = &start;
  };
};

template <class T>
void mma_forward(const AttentionProblem& problem, const TensorRef& out, const TensorRef& state) {
  dispatch_width(problem.q.sizes[3], [&](auto width) {
    entry_for<ForwardOf<T, decltype(width)::value>::template With>(problem.phi)(problem, out, state);
  });
}

}  // namespace polygrad::cuda::attention
