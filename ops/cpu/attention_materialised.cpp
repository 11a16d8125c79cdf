// The materialised path: P as a tensor. The reference that the others are compared with, and the attention maps.
//
// Where this stands: a path beside attention_tiled.cpp. It follows the formulas as they are written, a whole row (and,
// backward, a whole head) at a time, and its softmax knows nothing of running sums.
#include <limits>

#include "engine/parallel.h"
#include "ops/cpu/attention_block.h"
#include "ops/cpu/attention_paths.h"
#include "ops/cpu/attention_softmax.h"
#include "ops/cpu/gemm.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad::cpu::attention {
namespace {

constexpr std::int64_t kPanel = 64;  // rows of P made at a time

// Rows of P, without dropout: p = M∘φ(S)/c, or softmax over the visible keys.
template <class T>
void probabilities(const AttentionProblem& problem, const Block& block, T* p) {
  compute_scores(problem, block, p);
  if (problem.phi == attention_activation::kSoftmax) {
    const T infinity = std::numeric_limits<T>::infinity();
    hide_pairs(problem, block, -infinity, p);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      T* row = p + i * block.cols;
      exponentiate(row, block.cols, row_maximum(row, block.cols, -infinity), T(1));
      const T sum = row_sum(row, block.cols);
      const T inverse = sum == T(0) ? T(0) : T(1) / sum;
      for (std::int64_t j = 0; j < block.cols; ++j) row[j] *= inverse;
    }
    return;
  }
  const std::int64_t count = block.rows * block.cols;
  phi_loops<T>(problem.phi).value(p, count);
  hide_pairs(problem, block, T(0), p);
  const T inverse_divisor = static_cast<T>(1 / problem.divisor);
  for (std::int64_t i = 0; i < count; ++i) p[i] *= inverse_divisor;
}

// Calls f(block) for panels of whole rows of all heads, in parallel.
template <class F>
void for_panels(const Sizes& sizes, const F& f) {
  const std::int64_t panels = (sizes.queries + kPanel - 1) / kPanel;
  parallel_for(0, sizes.batch * sizes.heads * panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / panels, row = task % panels * kPanel;
      const std::int64_t rows = row + kPanel < sizes.queries ? kPanel : sizes.queries - row;
      f(Block{head / sizes.heads, head % sizes.heads, row, rows, 0, sizes.keys});
    }
  });
}

// dS from dP, in place: elementwise dP∘M∘Z∘φ'(S)/c; softmax p∘(Z∘dP - Σ_j p Z dP).
template <class T>
void score_gradient(const AttentionProblem& problem, const Block& block, const T* p, T* scores, T* dp) {
  drop_entries(problem, block, dp);
  if (problem.phi == attention_activation::kSoftmax) {
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const T* p_row = p + i * block.cols;
      T* dp_row = dp + i * block.cols;
      double inner = 0;
      for (std::int64_t j = 0; j < block.cols; ++j) inner += static_cast<double>(p_row[j]) * dp_row[j];
      softmax_gradient_row(p_row, dp_row, block.cols, static_cast<T>(inner));
    }
    return;
  }
  const std::int64_t count = block.rows * block.cols;
  compute_scores(problem, block, scores);
  phi_loops<T>(problem.phi).gradient(scores, dp, count);
  hide_pairs(problem, block, T(0), dp);
  const T inverse_divisor = static_cast<T>(1 / problem.divisor);
  for (std::int64_t i = 0; i < count; ++i) dp[i] *= inverse_divisor;
}

// The gradients of one head. p: its P before dropout; work and ds: two more buffers of that size.
template <class T>
void head_backward(const AttentionProblem& problem, std::int64_t b, std::int64_t h, const T* p, const TensorRef& grad,
                   const AttentionGradients& gradients, T* work, T* ds) {
  const Sizes sizes(problem);
  const std::int64_t rows = sizes.queries, cols = sizes.keys, d = sizes.head_dim;
  const Block block{b, h, 0, rows, 0, cols};
  const T scale = static_cast<T>(problem.score_scale);
  const Rows<const T> q = head_rows<const T>(problem.q, b, h);
  const Rows<const T> k = head_rows<const T>(problem.k, b, h);
  const Rows<const T> v = head_rows<const T>(problem.v, b, h);
  const Rows<const T> g = head_rows<const T>(grad, b, h);
  if (const Rows<T> dv = head_rows<T>(gradients.dv, b, h); dv.present()) {  // dv = (Z∘P)ᵀ G
    for (std::int64_t i = 0; i < rows * cols; ++i) work[i] = p[i];
    drop_entries(problem, block, work);
    gemm_serial<T>(true, false, cols, d, rows, T(1), work, cols, g.data, g.stride, T(0), dv.data, dv.stride);
  }
  // dP = G vᵀ
  gemm_serial<T>(false, true, rows, cols, d, T(1), g.data, g.stride, v.data, v.stride, T(0), ds, cols);
  score_gradient(problem, block, p, work, ds);
  if (const Rows<T> dq = head_rows<T>(gradients.dq, b, h); dq.present()) {  // dq = score_scale · dS k
    gemm_serial<T>(false, false, rows, d, cols, scale, ds, cols, k.data, k.stride, T(0), dq.data, dq.stride);
  }
  if (const Rows<T> dk = head_rows<T>(gradients.dk, b, h); dk.present()) {  // dk = score_scale · dSᵀ q
    gemm_serial<T>(true, false, cols, d, rows, scale, ds, cols, q.data, q.stride, T(0), dk.data, dk.stride);
  }
  if (gradients.dbias.present()) {  // += dS
    const TensorRef& ref = gradients.dbias;
    T* dbias = ref.as<T>() + (b % ref.sizes[0] * sizes.heads + h) * rows * cols;
    for (std::int64_t i = 0; i < rows * cols; ++i) dbias[i] += ds[i];
  }
}

}  // namespace

template <class T>
void materialised_map(Workspace&, const AttentionProblem& problem, const TensorRef& map) {
  const Sizes sizes(problem);
  for_panels(sizes, [&](const Block& block) {
    probabilities(problem, block,
                  map.as<T>() + ((block.b * sizes.heads + block.h) * sizes.queries + block.row) * sizes.keys);
  });
}

template <class T>
void materialised_forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                          const TensorRef& state) {
  const Sizes sizes(problem);
  T* all =
      state.present() ? state.as<T>() : workspace.allocate<T>(sizes.batch * sizes.heads * sizes.queries * sizes.keys);
  for_panels(sizes, [&](const Block& block) {
    T* p = all + ((block.b * sizes.heads + block.h) * sizes.queries + block.row) * sizes.keys;
    probabilities(problem, block, p);
    const T* used = p;
    Workspace scratch;
    if (problem.dropout.threshold != 0) {
      T* dropped = scratch.allocate<T>(block.rows * block.cols);
      for (std::int64_t i = 0; i < block.rows * block.cols; ++i) dropped[i] = p[i];
      drop_entries(problem, block, dropped);
      used = dropped;
    }
    const Rows<const T> v = head_rows<const T>(problem.v, block.b, block.h);
    const Rows<T> to = head_rows<T>(out, block.b, block.h);
    gemm_serial<T>(false, false, block.rows, sizes.head_dim, block.cols, T(1), used, block.cols, v.data, v.stride, T(0),
                   to.at(block.row), to.stride);
  });
}

template <class T>
void materialised_backward(Workspace&, const AttentionProblem& problem, const TensorRef&, const TensorRef& state,
                           const TensorRef& grad, const AttentionGradients& gradients) {
  const Sizes sizes(problem);
  const std::int64_t area = sizes.queries * sizes.keys;
  // Batches that share a dbias stand in one task, which takes them in order.
  std::int64_t sharers = sizes.batch;
  if (gradients.dbias.present()) {
    sharers = gradients.dbias.sizes[0] < sizes.batch ? gradients.dbias.sizes[0] : sizes.batch;
    for (std::int64_t i = 0; i < gradients.dbias.numel(); ++i) gradients.dbias.as<T>()[i] = 0;
  }
  parallel_for(0, sharers * sizes.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    Workspace scratch;
    T* work = scratch.allocate<T>(area);
    T* ds = scratch.allocate<T>(area);
    for (std::int64_t task = begin; task < end; ++task) {
      for (std::int64_t b = task / sizes.heads; b < sizes.batch; b += sharers) {
        const std::int64_t h = task % sizes.heads;
        head_backward(problem, b, h, state.as<const T>() + (b * sizes.heads + h) * area, grad, gradients, work, ds);
      }
    }
  });
}

#define POLYGRAD_INSTANTIATE(T)                                                                                   \
  template void materialised_map<T>(Workspace&, const AttentionProblem&, const TensorRef&);                       \
  template void materialised_forward<T>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&); \
  template void materialised_backward<T>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&, \
                                         const TensorRef&, const AttentionGradients&);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention
