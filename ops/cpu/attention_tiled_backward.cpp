// The tiled path, backward: the scores are computed again instead of kept. Read attention_tiled.h first.
//
// A panel of rows of a tile keeps p = M∘Z∘φ(S) and ds = dS·c for the products that sum over rows; those that sum over
// columns take each strip as it is made.
#include <limits>

#include "engine/parallel.h"
#include "ops/cpu/attention_paths.h"
#include "ops/cpu/attention_product.h"
#include "ops/cpu/attention_softmax.h"
#include "ops/cpu/attention_tiled.h"

namespace polygrad::cpu::attention {
namespace {

// --- where gradients are added --------------------------------------------------------------------------------------

// dk or dv of a head: the first group of rows writes the result itself, the others private rows that are added to it in
// order. A row of them stands for a token between the entry's first visible key and its last.
template <class T>
class KeyGradients {
 public:
  KeyGradients(Workspace& workspace, const TensorRef& result, const TiledWork& work) : work_(work), result_(result) {
    if (result.present() && work.plan.part_rows > 0) {
      parts_ = workspace.allocate<T>(work.plan.part_rows * work.sizes.head_dim);
    }
  }
  bool wanted() const { return result_.present(); }
  Rows<T> rows(std::int64_t b, std::int64_t h, std::int64_t group) const {
    if (!result_.present() || group == 0) return head_rows<T>(result_, b, h);
    const BatchPlan& batch = work_.batches[b];
    const Range keys = batch.extent.keys;
    const std::int64_t first = batch.parts + (h * (batch.groups - 1) + group - 1) * keys.count();
    return {parts_ + (first - keys.begin) * work_.sizes.head_dim, work_.sizes.head_dim};
  }
  void add_parts(const TensorRef& key_mask) const {
    if (parts_ == nullptr) return;
    const Sizes& sizes = work_.sizes;
    parallel_for(0, sizes.batch * sizes.heads * sizes.keys, 512, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t head = row / sizes.keys, j = row % sizes.keys, b = head / sizes.heads;
        if (!work_.has_work(b)) continue;
        if (key_mask.present() && !key_mask.as<const bool>()[b * sizes.keys + j]) continue;
        T* to = rows(b, head % sizes.heads, 0).at(j);
        for (std::int64_t group = 1; group < work_.batches[b].groups; ++group) {
          const T* from = rows(b, head % sizes.heads, group).at(j);
          for (std::int64_t e = 0; e < sizes.head_dim; ++e) to[e] += from[e];
        }
      }
    });
  }

 private:
  const TiledWork& work_;
  TensorRef result_;
  T* parts_ = nullptr;
};

// dbias (G, H, Nq, Nk), by chunks of the entries that share it.
template <class T>
class BiasGradient {
 public:
  BiasGradient(Workspace& workspace, const TensorRef& ref, const TiledPlan& plan) {
    if (!ref.present()) return;
    result_ = ref.as<T>();
    numel_ = ref.numel();
    chunks_ = plan.batch_chunks;
    groups_ = ref.sizes[0];
    heads_ = ref.sizes[1];
    queries_ = ref.sizes[2];
    keys_ = ref.sizes[3];
    if (chunks_ > 1) parts_ = workspace.allocate<T>((chunks_ - 1) * numel_);
    for_elements([&](std::int64_t i) {
      result_[i] = 0;
      for (std::int64_t chunk = 0; chunk + 1 < chunks_; ++chunk) parts_[chunk * numel_ + i] = 0;
    });
  }
  void add(std::int64_t chunk, const Pairs& pairs, const T* ds, T factor) const {
    if (result_ == nullptr) return;
    T* to = (chunk == 0 ? result_ : parts_ + (chunk - 1) * numel_) +
            (pairs.b % groups_ * heads_ + pairs.h) * queries_ * keys_;
    for (std::int64_t i = 0; i < pairs.rows.count; ++i) {
      T* row = to + pairs.rows.at(i) * keys_;
      pairs.cols.for_runs(pairs.cols.count, [&](std::int64_t from, std::int64_t key, std::int64_t count) {
        const T* values = ds + i * pairs.stride + from;
        for (std::int64_t j = 0; j < count; ++j) row[key + j] += factor * values[j];
      });
    }
  }
  void add_parts() const {
    if (chunks_ == 1) return;
    for_elements([&](std::int64_t i) {
      for (std::int64_t chunk = 0; chunk + 1 < chunks_; ++chunk) result_[i] += parts_[chunk * numel_ + i];
    });
  }

 private:
  template <class F>
  void for_elements(const F& f) const {
    parallel_for(0, numel_, std::int64_t{1} << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) f(i);
    });
  }

  T* result_ = nullptr;
  T* parts_ = nullptr;  // (chunks - 1, G, H, Nq, Nk)
  std::int64_t numel_ = 0, chunks_ = 1;
  std::int64_t groups_ = 1, heads_ = 1, queries_ = 0, keys_ = 0;
};

// --- a strip --------------------------------------------------------------------------------------------------------

// Turns scores into what dv is multiplied from, M∘Z∘φ(S), and dP = G vᵀ into dP∘M∘Z∘φ'(S) (1/c comes later).
template <class T>
void elementwise_gradient(const AttentionProblem& problem, const Pairs& pairs, T* s, T* dp) {
  phi_loops<T>(problem.phi).gradient(s, dp, pairs.rows.count * pairs.stride);
  if (problem.regions.present()) hide_pairs(problem, pairs, T(0), s, dp);
  drop_entries(problem, pairs, s, dp);
}

// The same for softmax: p = e^(s - m) / sum; dS_ij = p_ij (Z_ij dP_ij - D_i), and s leaves as p∘Z. `inner` holds D;
// null where a tile is the whole row, which then gives D itself (and a row's dS adds up to 0 as closely as it can).
template <class T>
void softmax_gradient(const AttentionProblem& problem, const Pairs& pairs, const RowStatistics<T>& statistics,
                      const T* inner, T* s, T* dp) {
  const std::int64_t n = pairs.stride;
  hide_padding(pairs.rows.count, pairs.cols.count, n, s);
  if (problem.regions.present()) hide_pairs(problem, pairs, -std::numeric_limits<T>::infinity(), s);
  drop_entries(problem, pairs, dp);
  for (std::int64_t i = 0; i < pairs.rows.count; ++i) {
    const T maximum = statistics.maximum[pairs.rows.at(i)], inverse = statistics.inverse_sum[pairs.rows.at(i)];
    T* p = s + i * n;
    T* ds = dp + i * n;
    if (inner != nullptr) {
      softmax_gradient_row(p, ds, n, maximum, inverse, inner[i]);
    } else {
      exponentiate(p, n, maximum, inverse);
      softmax_gradient_row(p, ds, n, row_product(p, ds, n));
    }
  }
  drop_entries(problem, pairs, s);
}

// D_i = Σ_j p_ij Z_ij dP_ij of a row in several tiles: = Σ_j p_ij Z_ij (G_i · v_j) = G_i · O_i, without a second pass.
template <class T>
void row_products(const Rows<const T>& grad, const Rows<const T>& out, const Tokens& rows, std::int64_t width,
                  T* inner) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const T* a = grad.at(rows.at(i));
    const T* b = out.at(rows.at(i));
    double sum = 0;
    for (std::int64_t e = 0; e < width; ++e) sum += static_cast<double>(a[e]) * b[e];
    inner[i] = static_cast<T>(sum);
  }
}

// --- a task ---------------------------------------------------------------------------------------------------------

// What one thread works with, made once a chunk. `depth` is the head's padded width.
template <class T>
struct Buffers {
  std::int64_t depth;
  T* keys;                       // (cols, depth) of a tile
  T *key_panels, *value_panels;  // keys and values as right factors
  T *dk, *dv;                    // (cols, depth): of a tile, over the task's rows
  T *queries, *grads, *dq;       // (rows, depth) of the task
  T* inner;                      // softmax: D of the task's rows
  T *scores, *gradients;         // (rows, cols) of a panel
  std::int32_t *query_list, *key_list;

  Buffers(Workspace& workspace, const TiledWork& work)
      : depth(padded<T>(work.sizes.head_dim)),
        keys(workspace.allocate<T>(work.shape.cols * depth)),
        key_panels(workspace.allocate<T>(work.shape.cols * depth)),
        value_panels(workspace.allocate<T>(work.shape.cols * depth)),
        dk(workspace.allocate<T>(work.shape.cols * depth)),
        dv(workspace.allocate<T>(work.shape.cols * depth)),
        queries(workspace.allocate<T>((work.plan.task_rows + kLine<T>)*depth)),
        grads(workspace.allocate<T>((work.plan.task_rows + kLine<T>)*depth)),
        dq(workspace.allocate<T>(work.plan.task_rows * depth)),
        inner(workspace.allocate<T>(work.plan.task_rows)),
        scores(workspace.allocate<T>(work.shape.rows * work.shape.cols)),
        gradients(workspace.allocate<T>(work.shape.rows * work.shape.cols)),
        query_list(workspace.allocate<std::int32_t>(work.sizes.queries)),
        key_list(workspace.allocate<std::int32_t>(work.sizes.keys)) {}
};

template <class T>
struct Backward {
  const AttentionProblem& problem;
  const TiledWork& work;
  const TensorRef &out, &state, &grad, &dq;
  const KeyGradients<T>&dk, &dv;
  const BiasGradient<T>& dbias;
  const Buffers<T>& buffers;

  void run(const TiledTask& task, std::int64_t b, const TiledTask* next) const;
  void gather(std::int64_t b, std::int64_t h, const Tokens& rows, Range strip) const;
  void panel(const TiledTask& task, std::int64_t b, const Tokens& rows, Range panel, const Tokens& tile, Range reach,
             bool first, const T* inner) const;
};

// The gradients of one entry of the batch, as far as a task's rows make them.
template <class T>
void Backward<T>::run(const TiledTask& task, std::int64_t b, const TiledTask* next) const {
  const std::int64_t d = work.sizes.head_dim, h = task.head;
  const Tokens rows = visible_tokens(query_mask_of(problem, b), task.rows, buffers.query_list);
  const Tokens keys = visible_tokens(key_mask_of(problem, b), {0, work.sizes.keys}, buffers.key_list);
  Rows<const T> k = head_rows<const T>(problem.k, b, h), v = head_rows<const T>(problem.v, b, h);
  const std::int64_t tiles = work.tiles(keys);
  T* inner = is_softmax(problem) && tiles > 1 ? buffers.inner : nullptr;
  if (inner != nullptr) row_products(head_rows<const T>(grad, b, h), head_rows<const T>(out, b, h), rows, d, inner);
  const T inverse_divisor = static_cast<T>(1 / problem.divisor);
  const std::int64_t panels = (rows.count + work.shape.rows - 1) / work.shape.rows;

  for (std::int64_t index = 0; index < tiles; ++index) {
    const Tokens tile = work.tile(keys, index);
    const bool first = index == 0, last = index + 1 == tiles;
    gather_rows(v, tile, d, T(1), buffers.dv);  // the room is not used yet
    transpose_rows(buffers.dv, tile.count, d, buffers.value_panels);
    gather_rows(k, tile, d, T(1), buffers.keys);
    transpose_rows(buffers.keys, tile.count, d, buffers.key_panels);
    for (std::int64_t e = 0; e < tile.count * buffers.depth; ++e) buffers.dk[e] = buffers.dv[e] = 0;
    Tokens coming;  // the keys after these
    if (!last) {
      coming = work.tile(keys, index + 1);
    } else if (next != nullptr) {
      coming = work.first_tile(next->first);
      k = head_rows<const T>(problem.k, next->first, next->head);
      v = head_rows<const T>(problem.v, next->first, next->head);
    }
    for (std::int64_t p = 0; p < panels; ++p) {
      const Range range = part_of(rows.count, panels, p, kStripRows);
      const Tokens share = coming.part(share_of(range, rows.count, coming.count));
      prefetch_rows<Access::read>(k, share, d);
      prefetch_rows<Access::read>(v, share, d);
      for_strips(range.count(), [&](Range strip) {
        if (first) gather(b, h, rows, {range.begin + strip.begin, range.begin + strip.end});
      });
      const Range reach = reach_in_panels<T>(problem, b, rows.part(range), tile);
      if (reach.count() > 0) {
        panel(task, b, rows, range, tile, reach, first, inner);
      } else {
        for (std::int64_t e = range.begin; first && e < range.end; ++e) {
          for (std::int64_t x = 0; x < buffers.depth; ++x) buffers.dq[e * buffers.depth + x] = 0;
        }
      }
      if (last && dq.present()) {
        scatter_rows(buffers.dq + range.begin * buffers.depth, rows.part(range), d,
                     static_cast<T>(problem.score_scale / problem.divisor), head_rows<T>(dq, b, h));
      }
    }
    if (dk.wanted()) scatter_rows(buffers.dk, tile, d, inverse_divisor, dk.rows(b, h, task.group));
    if (dv.wanted()) scatter_rows(buffers.dv, tile, d, inverse_divisor, dv.rows(b, h, task.group));
  }
}

template <class T>
void Backward<T>::gather(std::int64_t b, std::int64_t h, const Tokens& rows, Range strip) const {
  const std::int64_t d = work.sizes.head_dim, at = strip.begin * buffers.depth;
  gather_rows(head_rows<const T>(problem.q, b, h), rows.part(strip), d, static_cast<T>(problem.score_scale),
              buffers.queries + at);
  gather_rows(head_rows<const T>(grad, b, h), rows.part(strip), d, T(1), buffers.grads + at);
}

template <class T>
void Backward<T>::panel(const TiledTask& task, std::int64_t b, const Tokens& rows, Range range, const Tokens& tile,
                        Range reach, bool first, const T* inner) const {
  const std::int64_t d = work.sizes.head_dim, depth = buffers.depth, h = task.head;
  const std::int64_t stride = padded<T>(reach.count()), column = reach.begin * depth, row = range.begin * depth;
  const RowStatistics<T> statistics(state, work.sizes, b, h);
  for_strips(range.count(), [&](Range strip) {
    const Range place{range.begin + strip.begin, range.begin + strip.end};
    const Pairs pairs(b, h, rows.part(place), tile.part(reach), stride);
    T* s = buffers.scores + strip.begin * stride;
    T* ds = buffers.gradients + strip.begin * stride;
    multiply_panels(strip.count(), reach.count(), d, buffers.queries + place.begin * depth, depth,
                    buffers.key_panels + column, s, stride);
    multiply_panels(strip.count(), reach.count(), d, buffers.grads + place.begin * depth, depth,
                    buffers.value_panels + column, ds, stride);
    add_bias(problem, pairs, s);
    if (is_softmax(problem)) {
      softmax_gradient(problem, pairs, statistics, inner != nullptr ? inner + place.begin : nullptr, s, ds);
    } else {
      elementwise_gradient(problem, pairs, s, ds);
    }
    if (!dq.present()) return;
    multiply_rows(strip.count(), d, reach.count(), ds, stride, buffers.keys + column, !first,
                  buffers.dq + place.begin * depth);
  });
  if (dv.wanted()) {
    add_transposed_product(reach.count(), d, range.count(), buffers.scores, stride, buffers.grads + row,
                           buffers.dv + column);
  }
  if (dk.wanted()) {  // score_scale is in the queries
    add_transposed_product(reach.count(), d, range.count(), buffers.gradients, stride, buffers.queries + row,
                           buffers.dk + column);
  }
  dbias.add(task.chunk, Pairs(b, h, rows.part(range), tile.part(reach), stride), buffers.gradients,
            static_cast<T>(1 / problem.divisor));
}

}  // namespace

template <class T>
void tiled_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state,
                    const TensorRef& grad, const AttentionGradients& gradients) {
  const TiledWork work(workspace, problem, gradients.dbias.present() ? gradients.dbias.sizes[0] : 0);
  clear_hidden<T>(work, problem.query_mask, gradients.dq);
  clear_hidden<T>(work, problem.key_mask, gradients.dk);
  clear_hidden<T>(work, problem.key_mask, gradients.dv);
  const KeyGradients<T> dk(workspace, gradients.dk, work), dv(workspace, gradients.dv, work);
  const BiasGradient<T> dbias(workspace, gradients.dbias, work.plan);
  parallel_for(0, work.plan.tasks, work.plan.grain, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const Buffers<T> buffers(scratch, work);
    const Backward<T> backward{problem, work, out, state, grad, gradients.dq, dk, dv, dbias, buffers};
    for (std::int64_t index = begin; index < end; ++index) {
      const TiledTask& task = work.tasks[index];
      for (std::int64_t turn = 0; turn < task.batches; ++turn) {
        const std::int64_t b = task.first + turn * task.step;
        if (work.has_work(b)) backward.run(task, b, index + 1 < end ? &work.tasks[index + 1] : nullptr);
      }
    }
  });
  dk.add_parts(problem.key_mask);
  dv.add_parts(problem.key_mask);
  dbias.add_parts();
}

template void tiled_backward<float>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&,
                                    const TensorRef&, const AttentionGradients&);
template void tiled_backward<double>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&,
                                     const TensorRef&, const AttentionGradients&);

}  // namespace polygrad::cpu::attention
