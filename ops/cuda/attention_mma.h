// Attention on tensor cores: what its three kernels are made of. 16-bit q, k and v, sums and φ in f32.
//
// Where this stands: above mma.h, below attention_mma_forward.h and attention_mma_backward.h. A block has 64 or 128
// rows (queries; or keys, where their gradients are wanted), 16 or 32 a warp, whose operands and results stay in
// registers, and goes over the other side's tokens in tiles of 64, which lie twice in shared memory: while one is
// worked on, the next is on its way. Within a tile a warp takes 16 columns at a time: their scores are 16 numbers a
// thread, become weights in place, and are the operand of the next product without a detour. Templates: the dtype, the
// head's width as padded with zeros in shared memory, and φ. Bias, masks and dropout are branches that all threads of a
// warp take alike; a whole tile without them passes by all of it. Read next: attention_mma_forward.h.
#pragma once

#include "ops/cuda/attention_tile.h"
#include "ops/cuda/mma.h"

namespace polygrad::cuda::attention {

// In φ's place.
struct Softmax {};

// The head widths that there are kernels for; others are padded to the next.
inline constexpr int kWidths[] = {32, 64, 96, 128};

inline constexpr int kTokens = 64;  // of a tile in shared memory
inline constexpr int kStep = 16;    // of a tile's tokens, that a warp takes at a time
inline constexpr int kMostWarps = 4;
inline constexpr float kLog2E = 1.44269504f;

// Blocks of 16 rows that a warp has. More of them share each load from shared memory, and need more registers.
enum class Kernel { forward, queries, keys };
template <Kernel kKernel, int kWidth>
inline constexpr int kRowBlocks = kKernel == Kernel::forward ? 2
                                  : kWidth <= 64             ? 2
                                                             : 1;

// Blocks of kMostWarps that shall fit into a multiprocessor's registers: where the compiler chose, it would spill some
// for one more.
template <Kernel kKernel, int kWidth>
inline constexpr int kBlocks = kWidth == 32   ? (kKernel == Kernel::forward   ? 4
                                                 : kKernel == Kernel::queries ? 3
                                                                              : 2)
                               : kWidth == 64 ? (kKernel == Kernel::forward ? 3 : 2)
                                              : 2;

// Which memory accesses are allowed to be wide.
struct Alignment {
  bool loads = false;   // 16 bytes, of all inputs
  bool stores = false;  // 4 bytes, of all results
};

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

// --- tiles in shared memory -----------------------------------------------------------------------------------------

// Rows of kWidth 16-bit numbers, in pieces of 16 bytes. Within a group of pieces their places are exchanged by an
// exclusive or with the row's turn, such that eight rows' equal pieces lie in different banks. Tiles begin at multiples
// of 128 bytes, so the same can be done with addresses.
template <int kWidth>
struct Tile {
  static constexpr int kPieces = kWidth / 8, kGroup = kPieces % 8 == 0 ? 8 : 4, kRowBytes = kWidth * 2;
  static constexpr int bytes(int rows) { return rows * kRowBytes; }
  static __device__ __forceinline__ int at(int row, int piece) {
    const int turn = kGroup == 8 ? row & 7 : row >> 1 & 3;
    return row * kRowBytes + ((piece ^ turn) << 4);
  }
  // From the address of a row's piece 0 or 1 to that of the piece `more` after it; more is even.
  static __device__ __forceinline__ mma::Address further(mma::Address first, int more) {
    return (first ^ static_cast<mma::Address>(more % kGroup << 4)) +
           static_cast<mma::Address>(more / kGroup * kGroup * 16);
  }
};

// The rows of a head, and where they lie.
struct HeadRows {
  const unsigned char* data;
  int step;  // bytes from row to row
  __device__ __forceinline__ HeadRows(const Heads<float>& heads, int b, int h)
      : data(static_cast<const unsigned char*>(heads.data.data) + 2 * heads.at(b, h)),
        step(static_cast<int>(2 * heads.row)) {}
};

// A piece whose numbers lie at any address.
__device__ __forceinline__ void copy_numbers(unsigned char* to, const unsigned char* from, bool present) {
  Pack<std::uint16_t, 8> numbers = {};
  if (present) {
#pragma unroll
    for (int e = 0; e < 8; ++e) numbers.at[e] = reinterpret_cast<const std::uint16_t*>(from)[e];
  }
  *reinterpret_cast<Pack<std::uint16_t, 8>*>(to) = numbers;
}

// Rows first ... first + count - 1 into a tile; zeros where there are no tokens, and beyond the head's width.
template <int kWidth>
__device__ __forceinline__ void copy_rows(const HeadRows& rows, int first, int tokens, int width, int count, bool wide,
                                          unsigned char* tile) {
  // Neighbouring threads have neighbouring pieces; a thread's rows are a multiple of eight apart, so that its pieces
  // have the same turn in all of them.
  constexpr unsigned kAcross = Tile<kWidth>::kGroup;
  const int piece = static_cast<int>(threadIdx.x % kAcross), own = static_cast<int>(threadIdx.x / kAcross);
  const int step = static_cast<int>(blockDim.x / kAcross);
  const std::int64_t further = static_cast<std::int64_t>(step) * rows.step;
  const unsigned char* source = rows.data + static_cast<std::int64_t>(first + own) * rows.step + 16 * piece;
  unsigned char* to = tile + Tile<kWidth>::at(own, piece);
  const auto each = [&](const auto& copy) {
#pragma unroll 1
    for (int row = own; row < count; row += step, source += further, to += Tile<kWidth>::bytes(step)) {
#pragma unroll
      for (int more = 0; more < Tile<kWidth>::kPieces; more += Tile<kWidth>::kGroup) {
        copy(to + 16 * more, source + 16 * more, first + row < tokens && (piece + more) * 8 < width);
      }
    }
  };
  if (wide) {
    each([](unsigned char* place, const unsigned char* source, bool present) {
      mma::copy_async(mma::address_of(place), source, present);
    });
  } else {
    each(copy_numbers);
  }
}

// --- products -------------------------------------------------------------------------------------------------------

// A warp's own rows of q, k, v or dO: the first kKept · 16 columns in registers, the others left in shared memory.
template <int kRows, int kWidth, int kKept>
struct Operand {
  mma::Address from;
  std::uint32_t kept[kRows][kKept > 0 ? kKept : 1][4];

  __device__ __forceinline__ void load(const unsigned char* tile, int first) {
    from = mma::address_of(tile + Tile<kWidth>::at(first + lane_of_thread() % 16, lane_of_thread() / 16));
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
#pragma unroll
      for (int m = 0; m < kRows; ++m) load_columns(m, k, kept[m][k]);
    }
  }
  // Columns 16 k ... 16 k + 15.
  __device__ __forceinline__ void columns(int k, std::uint32_t (&to)[kRows][4]) const {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      if (k >= kKept) {
        load_columns(m, k, to[m]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[m][i] = kept[m][k][i];
      }
    }
  }

 private:
  __device__ __forceinline__ void load_columns(int m, int k, std::uint32_t (&to)[4]) const {
    const auto down = static_cast<mma::Address>(Tile<kWidth>::bytes(16 * m));
    mma::load_matrices(to, Tile<kWidth>::further(from + down, 2 * k));
  }
};

// 16 columns of a product with them.
template <int kRows>
using Scores = float[kRows][2][4];
// Those, rounded.
template <int kRows>
using Weights = std::uint32_t[kRows][4];
// A result's rows.
template <int kRows, int kWidth>
using Sums = float[kRows][kWidth / 8][4];

// scores = own · (rows first ... first + 15 of the tile)ᵀ
template <class T, int kWidth, int kRows, int kKept>
__device__ __forceinline__ void multiply_rows(const Operand<kRows, kWidth, kKept>& own, const unsigned char* tile,
                                              int first, Scores<kRows>& scores) {
  const int lane = lane_of_thread();
  const mma::Address from =
      mma::address_of(tile + Tile<kWidth>::bytes(first) + Tile<kWidth>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2));
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int e = 0; e < 8; ++e) scores[m][e / 4][e % 4] = 0;
  }
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    std::uint32_t a[kRows][4], b[4];
    own.columns(k, a);
    mma::load_matrices(b, Tile<kWidth>::further(from, 2 * k));
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      mma::multiply<T>(scores[m][0], a[m], b[0], b[1]);
      mma::multiply<T>(scores[m][1], a[m], b[2], b[3]);
    }
  }
}

// sums += weights · (rows first ... first + 15 of the tile)
template <class T, int kWidth, int kRows>
__device__ __forceinline__ void add_product(const Weights<kRows>& weights, const unsigned char* tile, int first,
                                            Sums<kRows, kWidth>& sums) {
  const int lane = lane_of_thread();
  const mma::Address from = mma::address_of(tile + Tile<kWidth>::bytes(first) + Tile<kWidth>::at(lane % 16, lane / 16));
#pragma unroll
  for (int n = 0; n < kWidth / 16; ++n) {
    std::uint32_t b[4];
    mma::load_matrices_transposed(b, Tile<kWidth>::further(from, 2 * n));
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      mma::multiply<T>(sums[m][2 * n], weights[m], b[0], b[1]);
      mma::multiply<T>(sums[m][2 * n + 1], weights[m], b[2], b[3]);
    }
  }
}

template <class T, int kRows>
__device__ __forceinline__ void round_scores(const Scores<kRows>& scores, Weights<kRows>& weights) {
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[m][i] = mma::pack<T>(scores[m][i / 2][i % 2 * 2], scores[m][i / 2][i % 2 * 2 + 1]);
    }
  }
}

// Rows of the result = factor[2m + half] · sums.
template <class T, int kWidth, int kRows>
__device__ __forceinline__ void write_sums(const WrittenHeads<float>& to, std::int64_t head, int first, int tokens,
                                           int width, bool wide, const Sums<kRows, kWidth>& sums,
                                           const float (&factor)[2 * kRows]) {
  auto* const data = static_cast<std::uint16_t*>(to.data.data) + head;
  const int g = lane_of_thread() / 4, q = lane_of_thread() % 4;
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) {
    const int row = first + 8 * r + g;
    if (row >= tokens) continue;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      if (8 * n >= width) continue;
      const float* const pair = &sums[r / 2][n][r % 2 * 2];
      const std::uint32_t both = mma::pack<T>(pair[0] * factor[r], pair[1] * factor[r]);
      std::uint16_t* const place = data + row * to.row + 8 * n + 2 * q;
      if (wide) {
        *reinterpret_cast<std::uint32_t*>(place) = both;
      } else {
        place[0] = static_cast<std::uint16_t>(both);
        place[1] = static_cast<std::uint16_t>(both >> 16);
      }
    }
  }
}

// --- the pairs of a warp's 16 columns -------------------------------------------------------------------------------

// A thread's number (m, n, e) of Scores belongs to row 16 m + 8 (e / 2) + g and column 8 n + 2 q + e % 2; flags of all
// of them are bits 8 m + 4 n + e. kKeysDown: rows are keys and columns queries, else the other way round.
template <bool kKeysDown>
struct Pairs {
  int b, h;
  int row, col;  // of (0, 0, 0)
  __device__ __forceinline__ int row_of(int m, int e) const { return row + 16 * m + e / 2 * 8; }
  __device__ __forceinline__ int col_of(int n, int e) const { return col + 8 * n + e % 2; }
  __device__ __forceinline__ int query(int m, int n, int e) const { return kKeysDown ? col_of(n, e) : row_of(m, e); }
  __device__ __forceinline__ int key(int m, int n, int e) const { return kKeysDown ? row_of(m, e) : col_of(n, e); }
};
__device__ __forceinline__ bool flag_of(std::uint32_t flags, int m, int n, int e) {
  return (flags >> (8 * m + 4 * n + e) & 1u) != 0;
}

// Which pairs exist and are seen.
template <int kRows, bool kKeysDown>
__device__ __forceinline__ std::uint32_t visible_pairs(const Problem<float>& p, const Pairs<kKeysDown>& pairs) {
  const SampleMasks masks(p, mma::unknown(pairs.b));
  const auto seen = [&](bool key, int n) { return key ? masks.key(n) : masks.query(n); };
  bool row_seen[2 * kRows], col_seen[4];
  std::int32_t row_region[2 * kRows], col_region[4];
  const int first = mma::unknown(pairs.row);
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) {
    const int row = first + 8 * r;
    row_seen[r] = seen(kKeysDown, row);
    row_region[r] = row_seen[r] ? masks.region(row) : 0;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int col = pairs.col_of(c / 2, c % 2);
    col_seen[c] = seen(!kKeysDown, col);
    col_region[c] = col_seen[c] ? masks.region(col) : 0;
  }
  std::uint32_t flags = 0;
#pragma unroll
  for (int r = 0; r < 2 * kRows; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const bool both = row_seen[r] && col_seen[c] && row_region[r] == col_region[c];
      flags |= static_cast<std::uint32_t>(both) << (8 * (r / 2) + 4 * (c / 2) + 2 * (r % 2) + c % 2);
    }
  }
  return flags;
}

// Which pairs dropout keeps. Eight keys of a query share one draw, and so do threads: each draws for kRows of these
// groups and gets the others' from its neighbours.
template <int kRows, bool kKeysDown>
__device__ __forceinline__ std::uint32_t kept_pairs(const Problem<float>& p, const Pairs<kKeysDown>& pairs) {
  const int lane = lane_of_thread(), g = lane / 4, q = lane % 4;
  const int row = mma::unknown(pairs.row);
  std::uint32_t flags = 0;
#pragma unroll
  for (int m = 0; m < kRows; ++m) {
    if constexpr (kKeysDown) {
      // Eight lanes of equal q have the eight keys of a group; there are eight groups: (half of the rows, n, column).
      const int query = pairs.col + g / 2 % 2 * 8 + g % 2, keys = row - g + 16 * m + g / 4 * 8;
      const std::uint32_t own = kept_of_group(p, pairs.b, pairs.h, query, keys / 8);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const std::uint32_t group = __shfl_sync(kAllLanes, own, (e % 4 / 2 * 4 + e / 4 * 2 + e % 2) * 4 + q);
        flags |= (group >> g & 1u) << (8 * m + e);
      }
    } else {
      // Four lanes of equal g have the eight keys of a group; there are four groups: (half of the rows, n).
      const int query = row + 16 * m + q / 2 * 8, keys = pairs.col - 2 * q + q % 2 * 8;
      const std::uint32_t own = kept_of_group(p, pairs.b, pairs.h, query, keys / 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // rows 8 (i / 2) + g, n = i % 2
        const std::uint32_t group = __shfl_sync(kAllLanes, own, lane - q + i);
        flags |= (group >> (2 * q) & 3u) << (8 * m + 4 * (i % 2) + 2 * (i / 2));
      }
    }
  }
  return flags;
}

// Adds the bias, stored as B, of visible pairs.
template <class B, int kRows, bool kKeysDown>
__device__ __forceinline__ void add_bias(const Problem<float>& p, const Pairs<kKeysDown>& pairs, std::uint32_t seen,
                                         Scores<kRows>& scores) {
  // Of number (0, 0, 0); 8 rows, 8 columns further, and so on.
  const B* const from = static_cast<const B*>(p.bias.data) +
                        bias_row(p, mma::unknown(pairs.b), pairs.h, mma::unknown(pairs.query(0, 0, 0))) +
                        pairs.key(0, 0, 0);
  const int keys = static_cast<int>(p.keys);
#pragma unroll
  for (int e = 0; e < 8 * kRows; ++e) {
    const int m = e / 8, n = e / 4 % 2, i = e % 4, down = 16 * m + i / 2 * 8, across = 8 * n + i % 2;
    if (!flag_of(seen, m, n, i)) continue;
    scores[m][n][i] += load(kKeysDown ? from[static_cast<std::int64_t>(across) * keys + down]
                                      : from[static_cast<std::int64_t>(down) * keys + across]);
  }
}
// From products to scores, as score() does. The bias has the type of q, or is f32.
template <class T, int kRows, bool kKeysDown>
__device__ __forceinline__ void scale_scores(const Problem<float>& p, const Pairs<kKeysDown>& pairs, std::uint32_t seen,
                                             Scores<kRows>& scores) {
#pragma unroll
  for (int e = 0; e < 8 * kRows; ++e) scores[e / 8][e / 4 % 2][e % 4] *= p.score_scale;
  if (!p.bias.present()) return;
  if (p.bias.dtype == DType::f32) {
    add_bias<float, kRows>(p, pairs, seen, scores);
  } else {
    add_bias<T, kRows>(p, pairs, seen, scores);
  }
}

// Weights of pairs that are not seen.
template <int kRows>
__device__ __forceinline__ void set_hidden(std::uint32_t seen, float value, Scores<kRows>& scores) {
#pragma unroll
  for (int e = 0; e < 8 * kRows; ++e) {
    if (!flag_of(seen, e / 8, e / 4 % 2, e % 4)) scores[e / 8][e / 4 % 2][e % 4] = value;
  }
}
template <int kRows>
__device__ __forceinline__ void drop(const Problem<float>& p, std::uint32_t kept, Scores<kRows>& weights) {
#pragma unroll
  for (int e = 0; e < 8 * kRows; ++e) {
    float& x = weights[e / 8][e / 4 % 2][e % 4];
    x = flag_of(kept, e / 8, e / 4 % 2, e % 4) ? x * static_cast<float>(p.dropout.scale) : 0.0f;
  }
}

// The problem's sizes in 32 bits, which take half the registers.
struct Sizes {
  int heads, queries, keys, width;
  explicit __device__ __forceinline__ Sizes(const Problem<float>& p)
      : heads(static_cast<int>(p.heads)),
        queries(static_cast<int>(p.queries)),
        keys(static_cast<int>(p.keys)),
        width(static_cast<int>(p.width)) {}
};

// --- blocks ---------------------------------------------------------------------------------------------------------

// Which head and rows a block has: blockIdx.x = (b·H + h)·blocks + block.
struct RowsOfBlock {
  int b, h, first;
};
template <int kRows>
__device__ __forceinline__ RowsOfBlock rows_of_block(const Sizes& sizes, int tokens) {
  const int rows = static_cast<int>(blockDim.x) / kWarp * 16 * kRows, blocks = (tokens + rows - 1) / rows;
  const int block = static_cast<int>(blockIdx.x), head = block / blocks;
  return {head / sizes.heads, head % sizes.heads, block % blocks * rows};
}

#endif

}  // namespace polygrad::cuda::attention
