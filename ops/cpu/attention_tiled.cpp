// The tiled path: exact attention for any φ without an N x N buffer.
//
// Where this stands: the path that runs unless φ is x. A task owns a group of row panels of one head, goes through each
// panel tile by tile, and keeps one tile of scores (and, backward, one of their gradients) in the cache. An elementwise
// φ needs nothing from the rest of its row: no maximum, no sum, no rescaling, no saved statistics. softmax keeps a
// running maximum and sum (attention_softmax.h) and saves them for the backward.
// Read next: attention_plan.h (how the work is cut), attention_block.h (what is done with a tile).
#include <limits>

#include "engine/parallel.h"
#include "ops/cpu/attention_block.h"
#include "ops/cpu/attention_paths.h"
#include "ops/cpu/attention_softmax.h"
#include "ops/cpu/gemm.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad::cpu::attention {
namespace {

bool is_softmax(const AttentionProblem& problem) { return problem.phi == attention_activation::kSoftmax; }

// softmax's saved state (2, B, H, Nq): each row's maximum and the inverse of its sum (0 for a fully hidden row).
template <class T>
struct RowStatistics {
  T* maximum = nullptr;
  T* inverse_sum = nullptr;

  RowStatistics(const TensorRef& state, const Sizes& sizes, std::int64_t b, std::int64_t h) {
    if (!state.present()) return;
    maximum = state.as<T>() + (b * sizes.heads + h) * sizes.queries;
    inverse_sum = maximum + sizes.batch * sizes.heads * sizes.queries;
  }
};

// What one thread works with, made once a chunk.
template <class T>
struct Buffers {
  T* scores;                      // a tile
  T* gradients;                   // of the scores; backward only
  T *maximum, *sum, *correction;  // softmax: a number for each row of a panel
  T* inner;                       // softmax's backward: D

  Buffers(Workspace& workspace, const TiledPlan& plan, bool backward)
      : scores(workspace.allocate<T>(plan.panel_rows * plan.tile_cols)),
        gradients(backward ? workspace.allocate<T>(plan.panel_rows * plan.tile_cols) : nullptr),
        maximum(workspace.allocate<T>(plan.panel_rows)),
        sum(workspace.allocate<T>(plan.panel_rows)),
        correction(workspace.allocate<T>(plan.panel_rows)),
        inner(workspace.allocate<T>(plan.panel_rows)) {}
};

// A task's coordinates.
struct Task {
  std::int64_t sharer, chunk, head, group;
  Task(const TiledPlan& plan, const Sizes& sizes, std::int64_t index) {
    group = index % plan.row_groups;
    index /= plan.row_groups;
    head = index % sizes.heads;
    index /= sizes.heads;
    chunk = index % plan.batch_chunks;
    sharer = index / plan.batch_chunks;
  }
  // Calls f(b) for the task's batches, in order.
  template <class F>
  void for_batches(const TiledPlan& plan, const Sizes& sizes, const F& f) const {
    const std::int64_t turns = (sizes.batch - sharer + plan.sharers - 1) / plan.sharers;
    const Range range = part_of(turns, plan.batch_chunks, chunk);
    for (std::int64_t turn = range.begin; turn < range.end; ++turn) f(sharer + turn * plan.sharers);
  }
  // Calls f(rows) for the task's panels, in order.
  template <class F>
  void for_panels(const TiledPlan& plan, const Sizes& sizes, const F& f) const {
    const Range panels = part_of(plan.panels, plan.row_groups, group);
    for (std::int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const std::int64_t begin = panel * plan.panel_rows;
      const std::int64_t end = begin + plan.panel_rows < sizes.queries ? begin + plan.panel_rows : sizes.queries;
      f(Range{begin, end});
    }
  }
};

// Calls f(block) for the tiles of rows `rows` that have a visible key, without the hidden columns at a tile's ends.
template <class F>
void for_tiles(const AttentionProblem& problem, const TiledPlan& plan, const Sizes& sizes, std::int64_t b,
               std::int64_t h, Range rows, const F& f) {
  if (rows.begin >= rows.end) return;
  const bool* key_mask = key_mask_of(problem, b);
  for (std::int64_t begin = 0; begin < sizes.keys; begin += plan.tile_cols) {
    const std::int64_t end = begin + plan.tile_cols < sizes.keys ? begin + plan.tile_cols : sizes.keys;
    const Range cols = trim(key_mask, {begin, end});
    if (cols.begin >= cols.end) continue;
    f(Block{b, h, rows.begin, rows.end - rows.begin, cols.begin, cols.end - cols.begin});
  }
}

// --- forward --------------------------------------------------------------------------------------------------------

// O_i = Σ_tiles (M∘Z∘φ(S)) v / c
template <class T>
void elementwise_panel(const AttentionProblem& problem, const TiledPlan& plan, const Sizes& sizes, std::int64_t b,
                       std::int64_t h, Range rows, const Rows<T>& out, const Buffers<T>& buffers) {
  const Rows<const T> v = head_rows<const T>(problem.v, b, h);
  const PhiLoops<T>& phi = phi_loops<T>(problem.phi);
  for_tiles(problem, plan, sizes, b, h, rows, [&](const Block& block) {
    T* p = buffers.scores;
    compute_scores(problem, block, p);
    phi.value(p, block.rows * block.cols);
    hide_pairs(problem, block, T(0), p);
    drop_entries(problem, block, p);
    gemm_serial<T>(false, false, block.rows, sizes.head_dim, block.cols, static_cast<T>(1 / problem.divisor), p,
                   block.cols, v.at(block.col), v.stride, T(1), out.at(block.row), out.stride);
  });
}

// The same with e^(s - m) for φ, m the row's maximum so far; at the end each row is divided by its sum.
template <class T>
void softmax_panel(const AttentionProblem& problem, const TiledPlan& plan, const Sizes& sizes, std::int64_t b,
                   std::int64_t h, Range rows, const Rows<T>& out, const RowStatistics<T>& statistics,
                   const Buffers<T>& buffers) {
  const Rows<const T> v = head_rows<const T>(problem.v, b, h);
  const T infinity = std::numeric_limits<T>::infinity();
  T* maximum = buffers.maximum;
  T* sum = buffers.sum;
  T* correction = buffers.correction;
  const std::int64_t count = rows.end - rows.begin;
  for (std::int64_t i = 0; i < count; ++i) {
    maximum[i] = -infinity;
    sum[i] = 0;
  }
  bool first = true;
  for_tiles(problem, plan, sizes, b, h, rows, [&](const Block& block) {
    T* p = buffers.scores;
    compute_scores(problem, block, p);
    hide_pairs(problem, block, -infinity, p);
    softmax_next_tile(p, block.rows, block.cols, maximum, sum, correction);
    for (std::int64_t i = 0; i < count && !first; ++i) {
      T* row = out.at(rows.begin + i);
      for (std::int64_t e = 0; e < sizes.head_dim; ++e) row[e] *= correction[i];
    }
    first = false;
    drop_entries(problem, block, p);
    gemm_serial<T>(false, false, block.rows, sizes.head_dim, block.cols, T(1), p, block.cols, v.at(block.col), v.stride,
                   T(1), out.at(block.row), out.stride);
  });
  for (std::int64_t i = 0; i < count; ++i) {
    const T inverse = sum[i] == T(0) ? T(0) : T(1) / sum[i];
    T* row = out.at(rows.begin + i);
    for (std::int64_t e = 0; e < sizes.head_dim; ++e) row[e] *= inverse;
    if (statistics.maximum == nullptr) continue;
    statistics.maximum[rows.begin + i] = maximum[i];
    statistics.inverse_sum[rows.begin + i] = inverse;
  }
}

// --- backward -------------------------------------------------------------------------------------------------------

// Where one task adds its share of a head's key-side gradients: the first group writes the result itself, the others
// private buffers that are added to it in order.
template <class T>
struct KeyGradients {
  T* parts = nullptr;  // (heads of all batches, row_groups - 1, Nk, d)
  TensorRef result;
  std::int64_t groups = 1;

  KeyGradients(Workspace& workspace, const TensorRef& result_ref, const TiledPlan& plan, const Sizes& sizes)
      : result(result_ref), groups(plan.row_groups) {
    if (!result.present() || groups == 1) return;
    parts = workspace.allocate<T>(sizes.batch * sizes.heads * (groups - 1) * sizes.keys * sizes.head_dim);
  }
  Rows<T> rows(const Sizes& sizes, std::int64_t b, std::int64_t h, std::int64_t group) const {
    if (!result.present() || group == 0) return head_rows<T>(result, b, h);
    const std::int64_t index = (b * sizes.heads + h) * (groups - 1) + group - 1;
    return {parts + index * sizes.keys * sizes.head_dim, sizes.head_dim};
  }
  void add_parts(const Sizes& sizes) const {
    if (!result.present() || groups == 1) return;
    parallel_for(0, sizes.batch * sizes.heads * sizes.keys, 512, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t head = row / sizes.keys, j = row % sizes.keys;
        T* to = rows(sizes, head / sizes.heads, head % sizes.heads, 0).at(j);
        for (std::int64_t group = 1; group < groups; ++group) {
          const T* from = rows(sizes, head / sizes.heads, head % sizes.heads, group).at(j);
          for (std::int64_t e = 0; e < sizes.head_dim; ++e) to[e] += from[e];
        }
      }
    });
  }
};

// The same for dbias (G, H, Nq, Nk), by chunks of the batches that share it.
template <class T>
struct BiasGradient {
  T* result = nullptr;
  T* parts = nullptr;  // (batch_chunks - 1, G, H, Nq, Nk)
  std::int64_t numel = 0, chunks = 1;
  std::int64_t groups = 1, heads = 1, queries = 0, keys = 0;

  BiasGradient(Workspace& workspace, const TensorRef& ref, const TiledPlan& plan) {
    if (!ref.present()) return;
    result = ref.as<T>();
    numel = ref.numel();
    chunks = plan.batch_chunks;
    groups = ref.sizes[0];
    heads = ref.sizes[1];
    queries = ref.sizes[2];
    keys = ref.sizes[3];
    if (chunks > 1) parts = workspace.allocate<T>((chunks - 1) * numel);
    parallel_for(0, numel, std::int64_t{1} << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) result[i] = 0;
      for (std::int64_t i = begin; parts != nullptr && i < end; ++i) {
        for (std::int64_t chunk = 0; chunk + 1 < chunks; ++chunk) parts[chunk * numel + i] = 0;
      }
    });
  }
  void add_block(std::int64_t chunk, const Block& block, const T* ds, T factor) const {
    if (result == nullptr) return;
    T* to = chunk == 0 ? result : parts + (chunk - 1) * numel;
    to += ((block.b % groups * heads + block.h) * queries + block.row) * keys + block.col;
    for (std::int64_t i = 0; i < block.rows; ++i) {
      for (std::int64_t j = 0; j < block.cols; ++j) to[i * keys + j] += factor * ds[i * block.cols + j];
    }
  }
  void add_parts() const {
    if (chunks == 1) return;
    parallel_for(0, numel, std::int64_t{1} << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
        for (std::int64_t i = begin; i < end; ++i) result[i] += parts[chunk * numel + i];
      }
    });
  }
};

// Turns a tile's scores into what dv is multiplied from, M∘Z∘φ(S), and dP = G vᵀ into dP∘M∘Z∘φ'(S) (1/c comes later).
template <class T>
void elementwise_gradient(const AttentionProblem& problem, const Block& block, T* s, T* dp) {
  phi_loops<T>(problem.phi).gradient(s, dp, block.rows * block.cols);
  hide_pairs(problem, block, T(0), s, dp);
  drop_entries(problem, block, s, dp);
}

// D_i = Σ_j p_ij Z_ij dP_ij of a row in several tiles: = Σ_j p_ij Z_ij (G_i · v_j) = G_i · O_i, without a second pass.
template <class T>
void row_products(const Rows<const T>& grad, const Rows<const T>& out, Range rows, std::int64_t width, T* inner) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    double sum = 0;
    for (std::int64_t e = 0; e < width; ++e) sum += static_cast<double>(grad.at(i)[e]) * out.at(i)[e];
    inner[i - rows.begin] = static_cast<T>(sum);
  }
}

// The same for softmax: p = e^(s - m) / sum; dS_ij = p_ij (Z_ij dP_ij - D_i), and s leaves as p∘Z. `inner` holds D;
// null where a tile is the whole row, which then gives D itself (and a row's dS adds up to 0 as closely as it can).
template <class T>
void softmax_gradient(const AttentionProblem& problem, const Block& block, const RowStatistics<T>& statistics,
                      const T* inner, T* s, T* dp) {
  hide_pairs(problem, block, -std::numeric_limits<T>::infinity(), s);
  drop_entries(problem, block, dp);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    T* p = s + i * block.cols;
    T* ds = dp + i * block.cols;
    exponentiate(p, block.cols, statistics.maximum[block.row + i], statistics.inverse_sum[block.row + i]);
    softmax_gradient_row(p, ds, block.cols, inner != nullptr ? inner[i] : row_product(p, ds, block.cols));
  }
  drop_entries(problem, block, s);
}

// One head's operands, and where a task adds its gradients.
template <class T>
struct BackwardHead {
  Rows<const T> q, k, v, g;
  Rows<T> dq, dk, dv;
};

// A tile's share of the gradients: p = M∘Z∘φ(S) (softmax: Z∘P), ds = dS·c.
template <class T>
void add_products(const BackwardHead<T>& head, const Block& block, std::int64_t d, T inverse_divisor, T score_factor,
                  const T* p, const T* ds) {
  const std::int64_t rows = block.rows, cols = block.cols;
  if (head.dv.present()) {  // dv += pᵀ G / c
    gemm_serial<T>(true, false, cols, d, rows, inverse_divisor, p, cols, head.g.at(block.row), head.g.stride, T(1),
                   head.dv.at(block.col), head.dv.stride);
  }
  if (head.dq.present()) {  // dq += score_scale · dS k
    gemm_serial<T>(false, false, rows, d, cols, score_factor, ds, cols, head.k.at(block.col), head.k.stride, T(1),
                   head.dq.at(block.row), head.dq.stride);
  }
  if (head.dk.present()) {  // dk += score_scale · dSᵀ q
    gemm_serial<T>(true, false, cols, d, rows, score_factor, ds, cols, head.q.at(block.row), head.q.stride, T(1),
                   head.dk.at(block.col), head.dk.stride);
  }
}

}  // namespace

template <class T>
void tiled_forward(Workspace&, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state) {
  const Sizes sizes(problem);
  const TiledPlan plan = plan_tiled(sizes.batch, sizes.heads, sizes.queries, sizes.keys, 0);
  parallel_for(0, plan.tasks, plan.grain, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const Buffers<T> buffers(scratch, plan, false);
    for (std::int64_t index = begin; index < end; ++index) {
      const Task task(plan, sizes, index);
      task.for_batches(plan, sizes, [&](std::int64_t b) {
        const Rows<T> result = head_rows<T>(out, b, task.head);
        const RowStatistics<T> statistics(state, sizes, b, task.head);
        task.for_panels(plan, sizes, [&](Range panel) {
          fill_rows(result, panel, sizes.head_dim, T(0));
          const Range rows = trim(query_mask_of(problem, b), panel);
          if (is_softmax(problem)) {
            softmax_panel(problem, plan, sizes, b, task.head, rows, result, statistics, buffers);
          } else {
            elementwise_panel(problem, plan, sizes, b, task.head, rows, result, buffers);
          }
        });
      });
    }
  });
}

template <class T>
void tiled_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out, const TensorRef& state,
                    const TensorRef& grad, const AttentionGradients& gradients) {
  const Sizes sizes(problem);
  const std::int64_t bias_groups = gradients.dbias.present() ? gradients.dbias.sizes[0] : 0;
  const TiledPlan plan = plan_tiled(sizes.batch, sizes.heads, sizes.queries, sizes.keys, bias_groups);
  const KeyGradients<T> key_gradients(workspace, gradients.dk, plan, sizes);
  const KeyGradients<T> value_gradients(workspace, gradients.dv, plan, sizes);
  const BiasGradient<T> bias_gradient(workspace, gradients.dbias, plan);
  const T inverse_divisor = static_cast<T>(1 / problem.divisor);
  const T score_factor = static_cast<T>(problem.score_scale / problem.divisor);
  const std::int64_t d = sizes.head_dim;

  parallel_for(0, plan.tasks, plan.grain, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    const Buffers<T> buffers(scratch, plan, true);
    T* s = buffers.scores;
    T* ds = buffers.gradients;
    T* inner = is_softmax(problem) && plan.tiles > 1 ? buffers.inner : nullptr;
    for (std::int64_t index = begin; index < end; ++index) {
      const Task task(plan, sizes, index);
      task.for_batches(plan, sizes, [&](std::int64_t b) {
        const std::int64_t h = task.head;
        const BackwardHead<T> head{head_rows<const T>(problem.q, b, h),
                                   head_rows<const T>(problem.k, b, h),
                                   head_rows<const T>(problem.v, b, h),
                                   head_rows<const T>(grad, b, h),
                                   head_rows<T>(gradients.dq, b, h),
                                   key_gradients.rows(sizes, b, h, task.group),
                                   value_gradients.rows(sizes, b, h, task.group)};
        const RowStatistics<T> statistics(state, sizes, b, h);
        if (head.dk.present()) fill_rows(head.dk, {0, sizes.keys}, d, T(0));
        if (head.dv.present()) fill_rows(head.dv, {0, sizes.keys}, d, T(0));
        task.for_panels(plan, sizes, [&](Range panel) {
          if (head.dq.present()) fill_rows(head.dq, panel, d, T(0));
          const Range rows = trim(query_mask_of(problem, b), panel);
          if (inner != nullptr) row_products(head.g, head_rows<const T>(out, b, h), rows, d, inner);
          for_tiles(problem, plan, sizes, b, h, rows, [&](const Block& block) {
            compute_scores(problem, block, s);
            gemm_serial<T>(false, true, block.rows, block.cols, d, T(1), head.g.at(block.row), head.g.stride,
                           head.v.at(block.col), head.v.stride, T(0), ds, block.cols);  // dP = G vᵀ
            if (is_softmax(problem)) {
              softmax_gradient(problem, block, statistics, inner, s, ds);
            } else {
              elementwise_gradient(problem, block, s, ds);
            }
            add_products(head, block, d, inverse_divisor, score_factor, s, ds);
            bias_gradient.add_block(task.chunk, block, ds, inverse_divisor);
          });
        });
      });
    }
  });
  key_gradients.add_parts(sizes);
  value_gradients.add_parts(sizes);
  bias_gradient.add_parts();
}

#define POLYGRAD_INSTANTIATE(T)                                                                            \
  template void tiled_forward<T>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&); \
  template void tiled_backward<T>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&, \
                                  const TensorRef&, const AttentionGradients&);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention
