// How attention's work is cut: a pure function of the shape.
//
// Where this stands: below the paths. Neither the number of threads nor any value enters a plan, so a result has the
// same bits for any number of threads.
#pragma once

#include <cstdint>

namespace polygrad::cpu::attention {

// Half-open.
struct Range {
  std::int64_t begin, end;
};
// Part `index` of [0, count) cut into `parts` nearly equal ones.
Range part_of(std::int64_t count, std::int64_t parts, std::int64_t index);

// The tiled path. Each head's score matrix is cut into panels of rows, and a panel into tiles of columns that stay in
// the cache. Consecutive panels of a head form a group; a task is one group of one head, for one or several batches.
struct TiledPlan {
  std::int64_t panel_rows, panels;
  std::int64_t tile_cols, tiles;
  std::int64_t row_groups;  // groups of panels in a head: more than one where there are few heads
  // Batches with the same b % sharers add to the same dbias. They are cut into batch_chunks consecutive parts, and one
  // task does a part's batches in order.
  std::int64_t sharers, batch_chunks;
  std::int64_t tasks;  // sharers x batch_chunks x heads x row_groups
  std::int64_t grain;  // tasks a chunk of parallel_for
};
// bias_groups: G of a bias whose gradient is wanted, else 0 (every batch for itself).
TiledPlan plan_tiled(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                     std::int64_t bias_groups);

// The linear path: each head's tokens are cut into this many parts.
std::int64_t plan_linear(std::int64_t batch, std::int64_t heads, std::int64_t tokens);

}  // namespace polygrad::cpu::attention
