#include "ops/cpu/attention_plan.h"

#include <algorithm>

namespace polygrad::cpu::attention {
namespace {

constexpr std::int64_t kTasks = 32;         // fewer heads than this are cut
constexpr std::int64_t kGroupRows = 64;     // rows in a group, at least
constexpr std::int64_t kChunks = 256;       // of parallel_for, at most
constexpr std::int64_t kNeighbours = 4;     // tasks in a chunk where they are alike: each fetches the next one's keys
constexpr std::int64_t kColumns = 32;       // a tile begins at a multiple of this: a panel of the right factor
constexpr std::int64_t kMaxTileCols = 256;  // keys in a tile
constexpr std::int64_t kTileElements = 24576;   // of a tile's keys: cols · d
constexpr std::int64_t kPanelElements = 49152;  // of a panel's scores: rows · cols
constexpr std::int64_t kLinearTokens = 256;     // tokens in a part of the linear path, at least

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

std::int64_t work_of(const Extent& extent) { return extent.queries.count() * extent.keys.count(); }

// batches[i].order: the entries by their work, the largest first; equal ones stay in order.
void sort_by_work(BatchPlan* batches, std::int64_t count) {
  for (std::int64_t b = 0; b < count; ++b) {
    std::int64_t place = b;
    for (; place > 0 && work_of(batches[batches[place - 1].order].extent) < work_of(batches[b].extent); --place) {
      batches[place].order = batches[place - 1].order;
    }
    batches[place].order = b;
  }
}

}  // namespace

Range part_of(std::int64_t count, std::int64_t parts, std::int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

Range part_of(std::int64_t count, std::int64_t parts, std::int64_t index, std::int64_t multiple) {
  const Range part = part_of(ceil_div(count, multiple), parts, index);
  return {std::min(part.begin * multiple, count), std::min(part.end * multiple, count)};
}

// --- the tiled path -------------------------------------------------------------------------------------------------

TileShape tile_shape(std::int64_t queries, std::int64_t keys, std::int64_t head_dim) {
  const std::int64_t max_cols =
      std::clamp<std::int64_t>(kTileElements / head_dim / kColumns * kColumns, kColumns, kMaxTileCols);
  TileShape shape;
  shape.cols = std::min(max_cols, round_up(keys, kColumns));
  shape.rows = std::min(round_up(std::clamp<std::int64_t>(kPanelElements / shape.cols, 64, 256), kStripRows),
                        round_up(queries, kStripRows));
  return shape;
}

std::int64_t tiles_of(const TileShape& shape, std::int64_t count) { return ceil_div(count, shape.cols); }

Range tile_of(const TileShape& shape, std::int64_t count, std::int64_t index) {
  return part_of(count, tiles_of(shape, count), index, kColumns);
}

TiledPlan plan_tiled(std::int64_t heads, std::int64_t queries, std::int64_t bias_groups, BatchPlan* batches,
                     std::int64_t batch_count) {
  TiledPlan plan;
  std::int64_t work = 0;
  for (std::int64_t b = 0; b < batch_count; ++b) work += work_of(batches[b].extent) * heads;
  sort_by_work(batches, batch_count);
  const auto groups_of = [&](std::int64_t share, std::int64_t whole, std::int64_t rows) {
    return std::clamp<std::int64_t>(ceil_div(kTasks * share, whole), 1, std::max<std::int64_t>(1, rows / kGroupRows));
  };
  if (bias_groups > 0) {
    // Entries that share a dbias stand in one task, or in few: so the rows are cut alike for all of them.
    plan.sharers = std::min(bias_groups, batch_count);
    const std::int64_t groups = groups_of(1, plan.sharers * heads, queries);
    plan.batch_chunks =
        std::clamp<std::int64_t>(kTasks / (plan.sharers * heads * groups), 1, batch_count / plan.sharers);
    for (std::int64_t b = 0; b < batch_count; ++b) batches[b].groups = groups;
    plan.tasks = plan.sharers * plan.batch_chunks * heads * groups;
  } else {
    plan.sharers = batch_count;
    for (std::int64_t b = 0; b < batch_count; ++b) {
      const Extent& extent = batches[b].extent;
      batches[b].groups = work_of(extent) == 0 ? 0 : groups_of(work_of(extent), work, extent.queries.count());
      plan.tasks += batches[b].groups * heads;
    }
  }
  for (std::int64_t b = 0; b < batch_count; ++b) {
    batches[b].parts = plan.part_rows;
    plan.part_rows += std::max<std::int64_t>(batches[b].groups - 1, 0) * heads * batches[b].extent.keys.count();
  }
  bool alike = true;
  for (std::int64_t b = 0; b < batch_count; ++b) {
    const std::int64_t rows = bias_groups > 0 ? queries : batches[b].extent.queries.count();
    const std::int64_t groups = std::max<std::int64_t>(batches[b].groups, 1);
    plan.task_rows = std::max(plan.task_rows, ceil_div(ceil_div(rows, kStripRows), groups) * kStripRows);
    alike = alike && work_of(batches[b].extent) == work_of(batches[0].extent);
  }
  const std::int64_t neighbours = alike ? std::clamp<std::int64_t>(plan.tasks / kTasks, 1, kNeighbours) : 1;
  plan.grain = std::max(neighbours, ceil_div(plan.tasks, kChunks));
  return plan;
}

void list_tasks(const TiledPlan& plan, std::int64_t heads, std::int64_t queries, const BatchPlan* batches,
                std::int64_t batch_count, TiledTask* tasks) {
  TiledTask* next = tasks;
  if (plan.sharers < batch_count || plan.batch_chunks > 1) {
    const std::int64_t groups = batches[0].groups;
    for (std::int64_t sharer = 0; sharer < plan.sharers; ++sharer) {
      const std::int64_t turns = ceil_div(batch_count - sharer, plan.sharers);
      for (std::int64_t chunk = 0; chunk < plan.batch_chunks; ++chunk) {
        const Range part = part_of(turns, plan.batch_chunks, chunk);
        for (std::int64_t head = 0; head < heads; ++head) {
          for (std::int64_t group = 0; group < groups; ++group) {
            *next++ = {sharer + part.begin * plan.sharers,         plan.sharers, part.count(), head, chunk, group,
                       part_of(queries, groups, group, kStripRows)};
          }
        }
      }
    }
    return;
  }
  for (std::int64_t i = 0; i < batch_count; ++i) {
    const std::int64_t b = batches[i].order;
    const Range rows = batches[b].extent.queries;
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t group = 0; group < batches[b].groups; ++group) {
        const Range part = part_of(rows.count(), batches[b].groups, group, kStripRows);
        *next++ = {b, 1, 1, head, 0, group, {rows.begin + part.begin, rows.begin + part.end}};
      }
    }
  }
}

// --- the linear path ------------------------------------------------------------------------------------------------

std::int64_t plan_linear(std::int64_t batch, std::int64_t heads, std::int64_t tokens) {
  return std::clamp<std::int64_t>(kTasks / (batch * heads), 1, ceil_div(tokens, kLinearTokens));
}

}  // namespace polygrad::cpu::attention
