// The tiled path, forward. Read attention_tiled.h first.
#include <limits>

#include "engine/parallel.h"
#include "ops/cpu/attention_paths.h"
#include "ops/cpu/attention_product.h"
#include "ops/cpu/attention_softmax.h"
#include "ops/cpu/attention_tiled.h"

namespace polygrad::cpu::attention {
namespace {

// What one thread works with, made once a chunk. `depth` is the head's padded width.
template <class T>
struct Buffers {
  std::int64_t depth;
  T *keys, *values;     // (cols, depth) of a tile
  T* key_panels;        // the keys as a right factor
  T *queries, *result;  // (rows, depth) of the task
  RowState<T>* rows;    // softmax: of the task
  T* scores;            // (strip, cols)
  std::int32_t *query_list, *key_list;

  Buffers(Workspace& workspace, const TiledWork& work)
      : depth(padded<T>(work.sizes.head_dim)),
        keys(workspace.allocate<T>(work.shape.cols * depth)),
        values(workspace.allocate<T>(work.shape.cols * depth)),
        key_panels(workspace.allocate<T>(work.shape.cols * depth)),
        queries(workspace.allocate<T>((work.plan.task_rows + kLine<T>)*depth)),
        result(workspace.allocate<T>(work.plan.task_rows * depth)),
        rows(workspace.allocate<RowState<T>>(work.plan.task_rows)),
        scores(workspace.allocate<T>(kMaxStrip * work.shape.cols)),
        query_list(workspace.allocate<std::int32_t>(work.sizes.queries)),
        key_list(workspace.allocate<std::int32_t>(work.sizes.keys)) {}
};

// s <- M∘Z∘φ(S)
template <class T>
void elementwise_strip(const AttentionProblem& problem, const Pairs& pairs, T* s) {
  phi_loops<T>(problem.phi).value(s, pairs.rows.count * pairs.stride);
  if (problem.regions.present()) hide_pairs(problem, pairs, T(0), s);
  drop_entries(problem, pairs, s);
}

// s <- Z∘e^(S - m), m the row's maximum so far; what the rows' earlier columns gave is scaled to it.
template <class T>
void softmax_strip(const AttentionProblem& problem, const Pairs& pairs, T* s, RowState<T>* rows, bool first, T* result,
                   std::int64_t depth) {
  hide_padding(pairs.rows.count, pairs.cols.count, pairs.stride, s);
  if (problem.regions.present()) hide_pairs(problem, pairs, -std::numeric_limits<T>::infinity(), s);
  for (std::int64_t i = 0; i < pairs.rows.count; ++i) {
    const T correction = softmax_next(s + i * pairs.stride, pairs.stride, rows[i]);
    for (std::int64_t e = 0; !first && e < depth; ++e) result[i * depth + e] *= correction;
  }
  drop_entries(problem, pairs, s);
}

template <class T>
struct Forward {
  const AttentionProblem& problem;
  const TiledWork& work;
  const TensorRef &out, &state;
  const Buffers<T>& buffers;

  void run(const TiledTask& task, const TiledTask* next) const;
  void strip(std::int64_t b, std::int64_t h, const Tokens& rows, Range strip, const Tokens& tile, bool first) const;
  void finish(std::int64_t b, std::int64_t h, const Tokens& rows, Range strip) const;
};

// O_i = Σ_tiles (M∘Z∘φ(S)) v / c for the rows of a task; softmax: with e^(s - m) for φ and the row's sum for c. `next`
// is the task that follows in this thread, or null.
template <class T>
void Forward<T>::run(const TiledTask& task, const TiledTask* next) const {
  const std::int64_t b = task.first, h = task.head, d = work.sizes.head_dim;
  const Rows<const T> q = head_rows<const T>(problem.q, b, h);
  Rows<const T> k = head_rows<const T>(problem.k, b, h), v = head_rows<const T>(problem.v, b, h);
  const Tokens rows = visible_tokens(query_mask_of(problem, b), task.rows, buffers.query_list);
  const Tokens keys = visible_tokens(key_mask_of(problem, b), {0, work.sizes.keys}, buffers.key_list);
  const std::int64_t tiles = work.tiles(keys);
  for (std::int64_t i = 0; i < rows.count; ++i) buffers.rows[i] = {-std::numeric_limits<T>::infinity(), T(0)};

  for (std::int64_t index = 0; index < tiles; ++index) {
    const Tokens tile = work.tile(keys, index);
    const bool first = index == 0, last = index + 1 == tiles;
    gather_rows(k, tile, d, T(1), buffers.keys);
    transpose_rows(buffers.keys, tile.count, d, buffers.key_panels);
    gather_rows(v, tile, d, T(1), buffers.values);
    Tokens coming;  // the keys after these
    if (!last) {
      coming = work.tile(keys, index + 1);
    } else if (next != nullptr) {
      coming = work.first_tile(next->first);
      k = head_rows<const T>(problem.k, next->first, next->head);
      v = head_rows<const T>(problem.v, next->first, next->head);
    }
    for_strips(rows.count, [&](Range range) {
      const Tokens share = coming.part(share_of(range, rows.count, coming.count));
      prefetch_rows<Access::read>(k, share, d);
      prefetch_rows<Access::read>(v, share, d);
      if (last) prefetch_rows<Access::write>(head_rows<T>(out, b, h), rows.part(range), d);
      if (first) {
        const std::int64_t ahead = range.end + kStripRows < rows.count ? range.end + kStripRows : rows.count;
        prefetch_rows<Access::read>(q, rows.part({range.end, ahead}), d);
        gather_rows(q, rows.part(range), d, static_cast<T>(problem.score_scale),
                    buffers.queries + range.begin * buffers.depth);
      }
      strip(b, h, rows, range, tile, first);
      if (last) finish(b, h, rows, range);
    });
  }
}

// result (+)= (M∘Z∘φ(S)) v for the rows of a strip and the keys of a tile.
template <class T>
void Forward<T>::strip(std::int64_t b, std::int64_t h, const Tokens& rows, Range range, const Tokens& tile,
                       bool first) const {
  const std::int64_t d = work.sizes.head_dim, depth = buffers.depth;
  T* result = buffers.result + range.begin * depth;
  const Range reach = reach_in_panels<T>(problem, b, rows.part(range), tile);
  if (reach.count() == 0) {
    for (std::int64_t e = 0; first && e < range.count() * depth; ++e) result[e] = 0;
    return;
  }
  const Pairs pairs(b, h, rows.part(range), tile.part(reach), padded<T>(reach.count()));
  T* s = buffers.scores;
  multiply_panels(range.count(), reach.count(), d, buffers.queries + range.begin * depth, depth,
                  buffers.key_panels + reach.begin * depth, s, pairs.stride);
  add_bias(problem, pairs, s);
  if (is_softmax(problem)) {
    softmax_strip(problem, pairs, s, buffers.rows + range.begin, first, result, depth);
  } else {
    elementwise_strip(problem, pairs, s);
  }
  multiply_rows(range.count(), d, reach.count(), s, pairs.stride, buffers.values + reach.begin * depth, !first, result);
}

template <class T>
void Forward<T>::finish(std::int64_t b, std::int64_t h, const Tokens& rows, Range range) const {
  const std::int64_t depth = buffers.depth;
  T* result = buffers.result + range.begin * depth;
  const RowStatistics<T> statistics(state, work.sizes, b, h);
  for (std::int64_t i = 0; is_softmax(problem) && i < range.count(); ++i) {
    const RowState<T>& row = buffers.rows[range.begin + i];
    const T inverse = row.sum == T(0) ? T(0) : T(1) / row.sum;
    for (std::int64_t e = 0; e < depth; ++e) result[i * depth + e] *= inverse;
    if (statistics.maximum == nullptr) continue;
    statistics.maximum[rows.at(range.begin + i)] = row.maximum;
    statistics.inverse_sum[rows.at(range.begin + i)] = inverse;
  }
  scatter_rows(result, rows.part(range), work.sizes.head_dim, static_cast<T>(1 / problem.divisor),
               head_rows<T>(out, b, h));
}

}  // namespace

template <class T>
void tiled_forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                   const TensorRef& state) {
  const TiledWork work(workspace, problem, 0);
  clear_hidden<T>(work, problem.query_mask, out);
  parallel_for(0, work.plan.tasks, work.plan.grain, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const Buffers<T> buffers(scratch, work);
    const Forward<T> forward{problem, work, out, state, buffers};
    for (std::int64_t index = begin; index < end; ++index) {
      forward.run(work.tasks[index], index + 1 < end ? &work.tasks[index + 1] : nullptr);
    }
  });
}

template void tiled_forward<float>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&);
template void tiled_forward<double>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&);

}  // namespace polygrad::cpu::attention
