// How attention's work is cut: a pure function of the shape and of the lengths that the masks leave.
//
// Where this stands: below the paths. The number of threads does not enter a plan, and no value but the masks', so a
// result has the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"

namespace polygrad::cpu::attention {

// Half-open.
struct Range {
  std::int64_t begin = 0, end = 0;
  POLYGRAD_INLINE std::int64_t count() const { return end - begin; }
};
// Part `index` of [0, count) cut into `parts` nearly equal ones.
Range part_of(std::int64_t count, std::int64_t parts, std::int64_t index);
// The same with parts that begin at multiples of `multiple`.
Range part_of(std::int64_t count, std::int64_t parts, std::int64_t index, std::int64_t multiple);

// --- the tiled path -------------------------------------------------------------------------------------------------

// Strips of this many rows of scores stay in the first-level cache from the product to the last use by row.
inline constexpr std::int64_t kStripRows = 8;
// A remainder of up to this many rows joins the strip before it.
inline constexpr std::int64_t kStripTail = 4;

// The scores of a task are computed tile by tile of its columns: a tile's keys and values are copied together once, for
// all rows of the task. The backward keeps a panel of a tile, two numbers for each of its pairs.
struct TileShape {
  std::int64_t cols;  // keys in a tile, at most
  std::int64_t rows;  // queries in a panel, at most
};
TileShape tile_shape(std::int64_t queries, std::int64_t keys, std::int64_t head_dim);
// Tile `index` of `count` keys: as few as the shape allows, nearly equal. And their number.
Range tile_of(const TileShape& shape, std::int64_t count, std::int64_t index);
std::int64_t tiles_of(const TileShape& shape, std::int64_t count);

// What the masks leave of one entry of the batch: its tokens from the first visible one to the last.
struct Extent {
  Range queries, keys;
};

// One entry of the batch in the plan. Its rows are cut into `groups` of a task each (for each head); 0 where nothing is
// visible.
struct BatchPlan {
  Extent extent;
  std::int64_t groups = 0;
  std::int64_t parts =
      0;  // groups beyond the first have dk and dv of their own: where they begin, in rows of all parts
  std::int64_t order = 0;  // at place i: the entry with the i-th most work
};

// A task: one head's rows `rows` (of q), for `batches` entries of the batch: first, first + step, ...
struct TiledTask {
  std::int64_t first, step, batches;
  std::int64_t head;
  std::int64_t chunk;  // which part of the batches that share a dbias: 0 ... batch_chunks - 1
  std::int64_t group;  // which part of the head's rows
  Range rows;
};

struct TiledPlan {
  // Entries with the same b % sharers add to the same dbias. They are cut into batch_chunks consecutive parts, and one
  // task does a part's entries in order. sharers = B where no dbias is wanted: each entry for itself.
  std::int64_t sharers = 0, batch_chunks = 1;
  std::int64_t tasks = 0;
  std::int64_t grain = 1;      // tasks a chunk of parallel_for
  std::int64_t task_rows = 0;  // rows of a task, at most
  std::int64_t part_rows = 0;  // rows of all private dk (and of all private dv)
};

// Where B·H heads are fewer than 32 tasks, the heads are cut into groups of rows by their share of the work, so that no
// task has more than a 32nd of it (as far as a group keeps 64 rows). bias_groups: G of a bias whose gradient is wanted,
// else 0. batches: B entries with their extents; gets the rest.
TiledPlan plan_tiled(std::int64_t heads, std::int64_t queries, std::int64_t bias_groups, BatchPlan* batches,
                     std::int64_t batch_count);
// The tasks of a plan, those of the longest entries first. tasks: plan.tasks of them.
void list_tasks(const TiledPlan& plan, std::int64_t heads, std::int64_t queries, const BatchPlan* batches,
                std::int64_t batch_count, TiledTask* tasks);

// --- the linear path ------------------------------------------------------------------------------------------------

// Each head's tokens are cut into this many parts.
std::int64_t plan_linear(std::int64_t batch, std::int64_t heads, std::int64_t tokens);

}  // namespace polygrad::cpu::attention
