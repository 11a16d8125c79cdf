#include "ops/cpu/attention_plan.h"

#include <algorithm>

namespace polygrad::cpu::attention {
namespace {

// Measured on a core with 2 MiB of second-level cache: a tile of scores and one of their gradients fill half of it.
constexpr std::int64_t kPanelRows = 128;
constexpr std::int64_t kTileCols = 512;
constexpr std::int64_t kSingleTile = 640;    // up to here a row is one tile: a remainder costs more than it saves
constexpr std::int64_t kTasks = 32;          // fewer heads than this are cut
constexpr std::int64_t kLinearTokens = 256;  // tokens in a part of the linear path, at least
constexpr std::int64_t kChunks = 256;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

}  // namespace

Range part_of(std::int64_t count, std::int64_t parts, std::int64_t index) {
  return {count * index / parts, count * (index + 1) / parts};
}

TiledPlan plan_tiled(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                     std::int64_t bias_groups) {
  TiledPlan plan;
  plan.panels = std::max<std::int64_t>(1, (queries + kPanelRows / 2) / kPanelRows);
  plan.panel_rows = plan.panels == 1 ? queries : round_up(ceil_div(queries, plan.panels), 16);
  plan.panels = ceil_div(queries, plan.panel_rows);
  plan.tiles = keys <= kSingleTile ? 1 : ceil_div(keys, kTileCols);
  plan.tile_cols = plan.tiles == 1 ? keys : round_up(ceil_div(keys, plan.tiles), 16);
  plan.tiles = ceil_div(keys, plan.tile_cols);

  plan.sharers = bias_groups > 0 ? std::min(bias_groups, batch) : batch;
  plan.row_groups = std::clamp<std::int64_t>(kTasks / (plan.sharers * heads), 1, plan.panels);
  plan.batch_chunks =
      std::clamp<std::int64_t>(kTasks / (plan.sharers * heads * plan.row_groups), 1, batch / plan.sharers);
  plan.tasks = plan.sharers * plan.batch_chunks * heads * plan.row_groups;
  plan.grain = ceil_div(plan.tasks, kChunks);
  return plan;
}

std::int64_t plan_linear(std::int64_t batch, std::int64_t heads, std::int64_t tokens) {
  return std::clamp<std::int64_t>(kTasks / (batch * heads), 1, ceil_div(tokens, kLinearTokens));
}

}  // namespace polygrad::cpu::attention
