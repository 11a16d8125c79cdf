// Attention on a GPU without tensor cores: what its kernels share. Tiles of 32 x 32 scores, any head width, f32 and
// f64.
//
// Where this stands: below attention_tiled.cu and attention_whole.cu. A block has eight warps; in a tile, warp w has
// the rows 4w ... 4w + 3 and lane l the column l, so that what belongs to a row (a maximum, a sum) is a warp's own
// affair. φ is a run-time branch here, the same for all threads. Read next: attention_tiled.cu.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/math.h"
#include "engine/philox.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad::cuda::attention {

inline constexpr int kTile = 32, kTileRows = 4, kTileThreads = 256;
inline constexpr int kDepth = 32;  // columns of q and k that lie in shared memory at a time
// Columns of the result that a block has: the accumulators of a thread, and v's part in shared memory.
template <class C>
inline constexpr int kColumns = sizeof(C) == 8 ? 64 : 128;

// Rows of (B, H, N, d).
template <class C>
struct Heads {
  Input<C> data;
  std::int64_t batch, head, row;  // strides
  explicit Heads(const TensorRef& ref) : data(ref), batch(ref.strides[0]), head(ref.strides[1]), row(ref.strides[2]) {}
  POLYGRAD_INLINE std::int64_t at(std::int64_t b, std::int64_t h) const { return b * batch + h * head; }
};
template <class C>
struct WrittenHeads {
  Output<C> data;
  std::int64_t batch, head, row;
  explicit WrittenHeads(const TensorRef& ref)
      : data(ref), batch(ref.strides[0]), head(ref.strides[1]), row(ref.strides[2]) {}
  POLYGRAD_INLINE bool present() const { return data.present(); }
  POLYGRAD_INLINE std::int64_t at(std::int64_t b, std::int64_t h) const { return b * batch + h * head; }
};

// An AttentionProblem as kernels see it.
template <class C>
struct Problem {
  Heads<C> q, k, v;
  std::int64_t batch, heads, queries, keys, width;
  Input<C> bias;
  const bool *key_mask, *query_mask;
  const std::int32_t* regions;
  std::int64_t bias_groups, region_groups;
  std::int32_t phi;
  C score_scale, inverse_divisor;
  AttentionDropout dropout;
  explicit Problem(const AttentionProblem& p)
      : q(p.q),
        k(p.k),
        v(p.v),
        batch(p.q.sizes[0]),
        heads(p.q.sizes[1]),
        queries(p.q.sizes[2]),
        keys(p.k.sizes[2]),
        width(p.q.sizes[3]),
        bias(p.bias),
        key_mask(p.key_mask.as<const bool>()),
        query_mask(p.query_mask.as<const bool>()),
        regions(p.regions.as<const std::int32_t>()),
        bias_groups(p.bias.sizes[0]),
        region_groups(p.regions.sizes[0]),
        phi(p.phi),
        score_scale(static_cast<C>(p.score_scale)),
        inverse_divisor(static_cast<C>(1 / p.divisor)),
        dropout(p.dropout) {}
  POLYGRAD_INLINE bool is_softmax() const { return phi == attention_activation::kSoftmax; }
  POLYGRAD_INLINE bool has_masks() const { return key_mask != nullptr || query_mask != nullptr || regions != nullptr; }
};

// What a backward that recomputes the scores reads.
template <class C>
struct Backward {
  Problem<C> p;
  Heads<C> grad;          // dO
  Input<C> state, inner;  // softmax: the forward's state; dO_i · O_i, (B, H, Nq)
};

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

__device__ __forceinline__ int warp_of_thread() { return static_cast<int>(threadIdx.x / unsigned{kWarp}); }
__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x % unsigned{kWarp}); }

// --- one pair of a query and a key
// --------------------------------------------------------------------------------------

// b % groups. A division of 64 bits would be a call.
__device__ __forceinline__ std::int64_t group_of(std::int64_t b, std::int64_t groups) {
  return static_cast<std::uint32_t>(b) % static_cast<std::uint32_t>(groups);
}

// The masks of a sample.
struct SampleMasks {
  std::int64_t queries, keys;
  const bool *query_mask, *key_mask;
  const std::int32_t* regions;
  template <class C>
  __device__ __forceinline__ SampleMasks(const Problem<C>& p, std::int64_t b)
      : queries(p.queries),
        keys(p.keys),
        query_mask(p.query_mask == nullptr ? nullptr : p.query_mask + b * p.queries),
        key_mask(p.key_mask == nullptr ? nullptr : p.key_mask + b * p.keys),
        regions(p.regions == nullptr ? nullptr : p.regions + group_of(b, p.region_groups) * p.keys) {}

  // Whether the query, or the key, exists and no mask of its own hides it.
  __device__ __forceinline__ bool query(std::int64_t i) const {
    return i < queries && (query_mask == nullptr || query_mask[i]);
  }
  __device__ __forceinline__ bool key(std::int64_t j) const { return j < keys && (key_mask == nullptr || key_mask[j]); }
  // Of an existing token; only pairs within a region see each other.
  __device__ __forceinline__ std::int32_t region(std::int64_t n) const { return regions == nullptr ? 0 : regions[n]; }
};
// Whether the pair exists and no mask hides it.
template <class C>
__device__ __forceinline__ bool visible(const Problem<C>& p, std::int64_t b, std::int64_t i, std::int64_t j) {
  const SampleMasks masks(p, b);
  return masks.query(i) && masks.key(j) && masks.region(i) == masks.region(j);
}

// Where the bias of a query begins; keys follow.
template <class C>
__device__ __forceinline__ std::int64_t bias_row(const Problem<C>& p, std::int64_t b, std::int64_t h, std::int64_t i) {
  return ((group_of(b, p.bias_groups) * p.heads + h) * p.queries + i) * p.keys;
}
// The score of an existing pair from its product.
template <class C>
__device__ __forceinline__ C score(const Problem<C>& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j,
                                   C product) {
  const C scaled = product * p.score_scale;
  if (!p.bias.present()) return scaled;
  return scaled + p.bias[bias_row(p, b, h, i) + j];
}

// Which of the eight keys 8·group ... 8·group + 7 a query keeps: one bit each.
template <class C>
__device__ __forceinline__ std::uint32_t kept_of_group(const Problem<C>& p, std::int64_t b, std::int64_t h,
                                                       std::int64_t i, std::int64_t group) {
  const AttentionDropout& d = p.dropout;
  const philox::Words words =
      philox::draw(d.seed, philox::Domain::attention, static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(i),
                   static_cast<std::uint32_t>((d.first_sample + b) * p.heads + h), d.offset);
  std::uint32_t kept = 0;
#pragma unroll
  for (int lane = 0; lane < 8; ++lane) {
    const std::uint32_t word = words.w[lane / 2], drawn = lane % 2 != 0 ? word >> 16 : word & 0xffffu;
    kept |= static_cast<std::uint32_t>(drawn >= d.threshold) << lane;
  }
  return kept;
}
template <class C>
__device__ __forceinline__ C dropout_factor(const Problem<C>& p, std::int64_t b, std::int64_t h, std::int64_t i,
                                            std::int64_t j) {
  if (p.dropout.threshold == 0) return C(1);
  return (kept_of_group(p, b, h, i, j / 8) >> (j % 8) & 1u) != 0 ? static_cast<C>(p.dropout.scale) : C(0);
}

template <class C>
struct PhiResult {
  C value, derivative;
};
template <class C, class... Phi>
POLYGRAD_INLINE PhiResult<C> phi_of_list(std::int32_t phi, C s, attention_activation::List<Phi...>) {
  PhiResult<C> result{C(0), C(0)};
  std::int32_t place = 0;
  ((phi == place++ ? void(result = {Phi::value(s), Phi::derivative(s)}) : void()), ...);
  return result;
}
// φ(s)/c and φ'(s)/c of an elementwise φ. Not inlined: it has all of them in it.
template <class C>
__device__ __noinline__ PhiResult<C> phi_of(std::int32_t phi, C s, C inverse_divisor) {
  PhiResult<C> result = phi_of_list(phi, s, attention_activation::ActivationList{});
  result.value *= inverse_divisor;
  result.derivative *= inverse_divisor;
  return result;
}

// --- tiles
// --------------------------------------------------------------------------------------------------------------

template <class C>
struct SharedTiles {
  C a[kTile][kDepth + 1], b[kTile][kDepth + 1];  // one more: lanes that read down a column meet no bank twice
  C weights[kTile][kTile + 1];
  C values[kTile][kColumns<C>];
};

// Rows first ... first + 31 of a head, columns from ... from + kWidth - 1; zeros outside.
template <int kWidth, int kPitch, class C>
__device__ __forceinline__ void load_rows(const Heads<C>& heads, std::int64_t head, std::int64_t first,
                                          std::int64_t rows, std::int64_t from, std::int64_t width,
                                          C (&to)[kTile][kPitch]) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kWidth; i += kTileThreads) {
    const int row = i / kWidth, column = i % kWidth;
    const bool inside = first + row < rows && from + column < width;
    to[row][column] = inside ? heads.data[head + (first + row) * heads.row + from + column] : C(0);
  }
}

// product[r] = the row 4w + r of a's tile times the row of b's that is this lane's.
template <class C>
__device__ __forceinline__ void tile_product(SharedTiles<C>& shared, const Heads<C>& a, std::int64_t head_a,
                                             std::int64_t first_a, std::int64_t rows_a, const Heads<C>& b,
                                             std::int64_t head_b, std::int64_t first_b, std::int64_t rows_b,
                                             std::int64_t width, C (&product)[kTileRows]) {
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) product[r] = C(0);
  for (std::int64_t from = 0; from < width; from += kDepth) {
    __syncthreads();  // what was there has been used
    load_rows<kDepth>(a, head_a, first_a, rows_a, from, width, shared.a);
    load_rows<kDepth>(b, head_b, first_b, rows_b, from, width, shared.b);
    __syncthreads();
#pragma unroll 8
    for (int e = 0; e < kDepth; ++e) {
      const C right = shared.b[lane_of_thread()][e];
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        product[r] = math::fma(shared.a[kTileRows * warp_of_thread() + r][e], right, product[r]);
      }
    }
  }
}

// What a thread has of a result: rows 4w + r, columns lane + 32 k of the block's part.
template <class C>
using Accumulators = C[kTileRows][kColumns<C> / kWarp];

// sums += weights · the rows of `values`, where this thread has the weights of its rows and column in the tile.
template <class C>
__device__ __forceinline__ void accumulate(SharedTiles<C>& shared, const C (&weights)[kTileRows],
                                           const Heads<C>& values, std::int64_t head, std::int64_t first,
                                           std::int64_t rows, std::int64_t from, std::int64_t width,
                                           Accumulators<C>& sums) {
  __syncthreads();  // what was there has been used
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    shared.weights[kTileRows * warp_of_thread() + r][lane_of_thread()] = weights[r];
  }
  load_rows<kColumns<C>>(values, head, first, rows, from, width, shared.values);
  __syncthreads();
#pragma unroll 4
  for (int j = 0; j < kTile; ++j) {
#pragma unroll
    for (int k = 0; k < kColumns<C> / kWarp; ++k) {
      const C value = shared.values[j][lane_of_thread() + k * kWarp];
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        sums[r][k] = math::fma(shared.weights[kTileRows * warp_of_thread() + r][j], value, sums[r][k]);
      }
    }
  }
}

// Row 4w + r of the result = factor[r] · sums.
template <class C>
__device__ __forceinline__ void write_rows(const WrittenHeads<C>& to, std::int64_t head, std::int64_t first,
                                           std::int64_t rows, std::int64_t from, std::int64_t width,
                                           const Accumulators<C>& sums, const C (&factor)[kTileRows]) {
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const std::int64_t row = first + kTileRows * warp_of_thread() + r;
    if (row >= rows) continue;
#pragma unroll
    for (int k = 0; k < kColumns<C> / kWarp; ++k) {
      const std::int64_t column = from + lane_of_thread() + k * kWarp;
      if (column < width) to.data.write(head + row * to.row + column, sums[r][k] * factor[r]);
    }
  }
}

// The running maximum and sum of a row's visible scores.
template <class C>
struct RowState {
  C largest = -math::from_bits(0x7f800000u), sum = 0;
  // -infinity minus itself would be NaN; minus 0 it stays what it is, and e to that is 0.
  __device__ __forceinline__ C base() const { return largest == -math::from_bits(0x7f800000u) ? C(0) : largest; }
  __device__ __forceinline__ C inverse() const { return sum == C(0) ? C(0) : C(1) / sum; }
  // Takes a tile's scores of the row, one a lane (-infinity where hidden). Gives e^(score - maximum); *correction is
  // what earlier results are multiplied by.
  __device__ __forceinline__ C take(C s, C* correction) {
    C grown = s;
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const C other = __shfl_xor_sync(kAllLanes, grown, distance);
      grown = other > grown ? other : grown;
    }
    const C before = largest;
    largest = grown > largest ? grown : largest;
    *correction = before == -math::from_bits(0x7f800000u) ? C(0) : math::exp(before - largest);
    const C e = s == -math::from_bits(0x7f800000u) ? C(0) : math::exp(s - base());
    sum = sum * *correction + warp_sum(e);
    return e;
  }
};

#endif

}  // namespace polygrad::cuda::attention
