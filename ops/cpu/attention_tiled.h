// The tiled path: exact attention for any φ without an N x N buffer.
//
// Where this stands: the path that runs unless φ is x; attention_tiled_forward.cpp and attention_tiled_backward.cpp are
// its two directions, and this is what they share. A task owns some rows of one head. It goes through the head's
// visible keys tile by tile: keys and values are copied together, the keys once more as a right factor; then the task's
// visible rows follow strip by strip. A strip of scores is computed, mapped by φ, masked, dropped and multiplied with v
// while it is in the first-level cache. An elementwise φ needs nothing from the rest of its row: no maximum, no sum, no
// rescaling, no saved statistics. softmax keeps a running maximum and sum (attention_softmax.h) and saves them for the
// backward.
// Read next: attention_plan.h (how the work is cut), attention_tokens.h (what masks do to it), attention_product.h (the
// products), attention_tiled_forward.cpp.
#pragma once

#include <cstdint>

#include "engine/workspace.h"
#include "ops/cpu/attention_block.h"
#include "ops/cpu/attention_plan.h"
#include "ops/cpu/attention_product.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad::cpu::attention {

POLYGRAD_INLINE bool is_softmax(const AttentionProblem& problem) {
  return problem.phi == attention_activation::kSoftmax;
}

// softmax's saved state (2, B, H, Nq): each row's maximum and the inverse of its sum (0 for a fully hidden row).
template <class T>
struct RowStatistics {
  T* maximum = nullptr;
  T* inverse_sum = nullptr;

  POLYGRAD_INLINE RowStatistics(const TensorRef& state, const Sizes& sizes, std::int64_t b, std::int64_t h) {
    if (!state.present()) return;
    maximum = state.as<T>() + (b * sizes.heads + h) * sizes.queries;
    inverse_sum = maximum + sizes.batch * sizes.heads * sizes.queries;
  }
};

// A problem's tasks.
struct TiledWork {
  Sizes sizes;
  TileShape shape;
  TiledPlan plan;
  BatchPlan* batches;
  TiledTask* tasks;

  // bias_groups: G of a bias whose gradient is wanted, else 0.
  TiledWork(Workspace& workspace, const AttentionProblem& problem, std::int64_t bias_groups);
  // Whether some pair of an entry of the batch may be visible.
  POLYGRAD_INLINE bool has_work(std::int64_t b) const {
    return batches[b].extent.queries.count() > 0 && batches[b].extent.keys.count() > 0;
  }
  // Where an entry's first tile is, as far as can be said without its mask: for a prefetch.
  POLYGRAD_INLINE Tokens first_tile(std::int64_t b) const {
    const Range keys = batches[b].extent.keys;
    return run_of_tokens({keys.begin, keys.count() < shape.cols ? keys.end : keys.begin + shape.cols});
  }
  POLYGRAD_INLINE std::int64_t tiles(const Tokens& keys) const { return tiles_of(shape, keys.count); }
  POLYGRAD_INLINE Tokens tile(const Tokens& keys, std::int64_t index) const {
    return keys.part(tile_of(shape, keys.count, index));
  }
};

// Zeros for the rows of x (B, H, N, d) that are hidden, and for entries without work. mask: (B, N), or absent.
template <class T>
void clear_hidden(const TiledWork& work, const TensorRef& mask, const TensorRef& x);

// Calls f(range) for the strips of [0, count).
inline constexpr std::int64_t kMaxStrip = kStripRows + kStripTail;
template <class F>
POLYGRAD_INLINE void for_strips(std::int64_t count, const F& f) {
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t end = count - begin <= kMaxStrip ? count : begin + kStripRows;
    f(Range{begin, end});
    begin = end;
  }
}

// The part of [0, count) that belongs to a strip of [0, rows): what it prefetches.
POLYGRAD_INLINE Range share_of(Range strip, std::int64_t rows, std::int64_t count) {
  return {count * strip.begin / rows, count * strip.end / rows};
}

// The tile's columns that some of `rows` may see, from the beginning of a panel of the right factor on.
template <class T>
POLYGRAD_INLINE Range reach_in_panels(const AttentionProblem& problem, std::int64_t b, const Tokens& rows,
                                      const Tokens& tile) {
  const Range reach = columns_in_reach(problem, b, rows, tile);
  return {reach.begin / kPanelCols<T> * kPanelCols<T>, reach.end};
}

// Padded columns leave a softmax as hidden pairs do.
template <class T>
void hide_padding(std::int64_t rows, std::int64_t cols, std::int64_t stride, T* s);

}  // namespace polygrad::cpu::attention
