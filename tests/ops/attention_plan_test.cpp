// How attention's work is cut: every visible row in exactly one task, by the true lengths, in tasks enough for many
// threads; tiles that cover the keys.
#include "ops/cpu/attention_plan.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

using namespace polygrad::cpu::attention;

namespace {

struct Planned {
  TiledPlan plan;
  std::vector<BatchPlan> batches;
  std::vector<TiledTask> tasks;
};

Planned plan_of(const std::vector<Extent>& extents, std::int64_t heads, std::int64_t queries,
                std::int64_t bias_groups = 0) {
  Planned planned;
  for (const Extent& extent : extents) planned.batches.push_back({extent});
  const auto count = static_cast<std::int64_t>(extents.size());
  planned.plan = plan_tiled(heads, queries, bias_groups, planned.batches.data(), count);
  planned.tasks.resize(static_cast<std::size_t>(planned.plan.tasks));
  list_tasks(planned.plan, heads, queries, planned.batches.data(), count, planned.tasks.data());
  return planned;
}

std::vector<Extent> equal(std::int64_t batch, std::int64_t tokens) {
  return std::vector<Extent>(static_cast<std::size_t>(batch), Extent{{0, tokens}, {0, tokens}});
}

std::vector<Extent> lengths(const std::vector<std::int64_t>& values) {
  std::vector<Extent> extents;
  for (const std::int64_t n : values) extents.push_back({{0, n}, {0, n}});
  return extents;
}

std::int64_t work_of(const Planned& planned, const TiledTask& task) {
  std::int64_t work = 0;
  for (std::int64_t i = 0; i < task.batches; ++i) {
    const Extent& extent = planned.batches[static_cast<std::size_t>(task.first + i * task.step)].extent;
    const std::int64_t begin = std::max(task.rows.begin, extent.queries.begin);
    work += std::max<std::int64_t>(0, std::min(task.rows.end, extent.queries.end) - begin) * extent.keys.count();
  }
  return work;
}

// Each (entry, head, visible row) is in one task, and no task is empty-handed beyond what the plan promises.
void check_covers(const Planned& planned, std::int64_t heads, std::int64_t queries) {
  const std::size_t batch = planned.batches.size();
  std::vector<int> seen(batch * static_cast<std::size_t>(heads * queries), 0);
  for (const TiledTask& task : planned.tasks) {
    CHECK(task.rows.count() <= planned.plan.task_rows);
    for (std::int64_t i = 0; i < task.batches; ++i) {
      for (std::int64_t row = task.rows.begin; row < task.rows.end; ++row) {
        ++seen[static_cast<std::size_t>(((task.first + i * task.step) * heads + task.head) * queries + row)];
      }
    }
  }
  for (std::size_t b = 0; b < batch; ++b) {
    const Extent& extent = planned.batches[b].extent;
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t row = extent.queries.begin; row < extent.queries.end && extent.keys.count() > 0; ++row) {
        CHECK(seen[static_cast<std::size_t>((static_cast<std::int64_t>(b) * heads + h) * queries + row)] == 1);
      }
    }
  }
}

}  // namespace

TEST_CASE("each visible row of each head is in exactly one task") {
  for (const std::int64_t n : {1, 7, 49, 64, 257, 1000, 4096}) {
    for (const std::int64_t batch : {1, 4, 33}) {
      for (const std::int64_t bias_groups : {0, 1, 3}) {
        CAPTURE(n);
        CAPTURE(batch);
        CAPTURE(bias_groups);
        check_covers(plan_of(equal(batch, n), 2, n, bias_groups), 2, n);
      }
    }
  }
  std::vector<Extent> odd = lengths({5, 0, 300, 1, 77});
  odd[2] = {{11, 290}, {3, 200}};  // padded at both ends
  odd[3].keys = {0, 0};            // no key: no work
  check_covers(plan_of(odd, 3, 300), 3, 300);
}

TEST_CASE("long heads are cut where there are few: at least 32 tasks at B H = 2, N = 4096") {
  CHECK(plan_of(equal(1, 4096), 2, 4096).plan.tasks >= 32);
  CHECK(plan_of(equal(4, 4096), 2, 4096).plan.tasks >= 32);
  CHECK(plan_of(equal(32, 257), 3, 257).plan.tasks == 96);  // as many heads as are needed: none is cut
  CHECK(plan_of(equal(1, 32), 1, 32).plan.tasks == 1);      // too short to be cut
}

TEST_CASE("tasks follow the lengths: none has more than a sixteenth of the work, and the longest come first") {
  const Planned planned = plan_of(lengths({256, 2048, 1024, 512}), 2, 2048);
  std::int64_t total = 0, largest = 0;
  for (const TiledTask& task : planned.tasks) {
    total += work_of(planned, task);
    largest = std::max(largest, work_of(planned, task));
  }
  CHECK(total == 2 * (256 * 256 + 2048 * 2048 + 1024 * 1024 + 512 * 512));  // Σ len² of each head, not B · max²
  CHECK(16 * largest <= total);
  std::vector<std::int64_t> order;
  for (const TiledTask& task : planned.tasks) {
    if (order.empty() || order.back() != task.first) order.push_back(task.first);
  }
  CHECK(order == std::vector<std::int64_t>{1, 2, 3, 0});
}

TEST_CASE("an entry of which nothing is visible has no task") {
  std::vector<Extent> extents = lengths({64, 0, 64});
  extents[2].queries = {0, 0};
  const Planned planned = plan_of(extents, 2, 64);
  for (const TiledTask& task : planned.tasks) CHECK(task.first == 0);
  CHECK(planned.plan.tasks == 2);
}

TEST_CASE("entries that share a bias are handled by one task in turn, in a fixed number of parts") {
  const Planned swin = plan_of(equal(64, 49), 3, 49, 1);
  CHECK(swin.plan.batch_chunks == 10);
  CHECK(swin.plan.tasks == 30);
  CHECK(plan_of(equal(64, 49), 3, 49, 64).plan.tasks == 192);
}

TEST_CASE("tiles cover the keys, in panels of 32, and stay in the cache") {
  for (const std::int64_t head_dim : {32, 48, 64, 96, 128}) {
    for (std::int64_t keys = 1; keys < 3000; keys += 37) {
      const TileShape shape = tile_shape(keys, keys, head_dim);
      CHECK(shape.cols % 32 == 0);
      CHECK(shape.cols * head_dim <= 1 << 15);
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < tiles_of(shape, keys); ++i) {
        const Range tile = tile_of(shape, keys, i);
        CHECK(tile.begin == next);
        CHECK(tile.begin % 32 == 0);
        CHECK(tile.count() <= shape.cols);
        next = tile.end;
      }
      CHECK(next == keys);
    }
  }
}
