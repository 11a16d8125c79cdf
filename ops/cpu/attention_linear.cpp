// The linear path: φ = x, so O = κ (q kᵀ) v = κ q (kᵀ v) with κ = score_scale / c. Exact, and O(N d²).
//
// Where this stands: a path beside attention_tiled.cpp; the front keeps bias, regions and dropout away, which act on
// single entries of the N x N matrix. Both masks are allowed: a hidden row stays out of the sums.
// How the work is cut: each head's tokens lie in a fixed number of parts; products over the tokens are made part by
// part and added in order, products by token are independent.
#include "engine/parallel.h"
#include "ops/cpu/attention_block.h"
#include "ops/cpu/attention_paths.h"
#include "ops/cpu/gemm.h"

namespace polygrad::cpu::attention {
namespace {

constexpr std::int64_t kPanel = 256;  // tokens copied at a time where a mask has holes

// Copies the visible rows of `range` together; returns how many.
template <class T>
std::int64_t pack_visible(const Rows<const T>& rows, const bool* mask, Range range, std::int64_t d, T* packed) {
  std::int64_t count = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    if (!mask[i]) continue;
    for (std::int64_t e = 0; e < d; ++e) packed[count * d + e] = rows.at(i)[e];
    ++count;
  }
  return count;
}

// sum (d, d) = aᵀ b over the visible rows of `range`.
template <class T>
void product_of_rows(const Rows<const T>& a, const Rows<const T>& b, const bool* mask, Range range, std::int64_t d,
                     T* sum) {
  if (mask == nullptr) {
    gemm_serial<T>(true, false, d, d, range.end - range.begin, T(1), a.at(range.begin), a.stride, b.at(range.begin),
                   b.stride, T(0), sum, d);
    return;
  }
  for (std::int64_t e = 0; e < d * d; ++e) sum[e] = 0;
  range = trim(mask, range);
  Workspace scratch;
  T* packed_a = scratch.allocate<T>(kPanel * d);
  T* packed_b = scratch.allocate<T>(kPanel * d);
  for (std::int64_t begin = range.begin; begin < range.end; begin += kPanel) {
    const Range panel{begin, begin + kPanel < range.end ? begin + kPanel : range.end};
    const std::int64_t count = pack_visible(a, mask, panel, d, packed_a);
    pack_visible(b, mask, panel, d, packed_b);
    gemm_serial<T>(true, false, d, d, count, T(1), packed_a, d, packed_b, d, T(1), sum, d);
  }
}

// For every head: result (B, H, d, d) = aᵀ b over the visible tokens.
template <class T>
void products_over_tokens(Workspace& workspace, const TensorRef& a, const TensorRef& b, const TensorRef& mask,
                          T* result) {
  const std::int64_t batch = a.sizes[0], heads = a.sizes[1], tokens = a.sizes[2], d = a.sizes[3];
  const std::int64_t parts = plan_linear(batch, heads, tokens);
  T* sums = parts == 1 ? result : workspace.allocate<T>(batch * heads * parts * d * d);
  parallel_for(0, batch * heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / parts;
      const bool* visible = mask.present() ? mask.as<const bool>() + head / heads * tokens : nullptr;
      product_of_rows<T>(head_rows<const T>(a, head / heads, head % heads),
                         head_rows<const T>(b, head / heads, head % heads), visible,
                         part_of(tokens, parts, task % parts), d, sums + task * d * d);
    }
  });
  if (parts == 1) return;
  parallel_for(0, batch * heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      T* to = result + head * d * d;
      for (std::int64_t e = 0; e < d * d; ++e) to[e] = sums[head * parts * d * d + e];
      for (std::int64_t part = 1; part < parts; ++part) {
        for (std::int64_t e = 0; e < d * d; ++e) to[e] += sums[(head * parts + part) * d * d + e];
      }
    }
  });
}

// For every head and visible token: result = κ · rows · m, m its (d, d) matrix or that matrix transposed; hidden
// tokens get 0.
template <class T>
void products_by_token(const TensorRef& rows_ref, const T* matrices, bool transposed, const TensorRef& mask, T factor,
                       const TensorRef& result) {
  if (!result.present()) return;
  const std::int64_t batch = result.sizes[0], heads = result.sizes[1], tokens = result.sizes[2], d = result.sizes[3];
  const std::int64_t parts = plan_linear(batch, heads, tokens);
  parallel_for(0, batch * heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / parts;
      const Rows<const T> rows = head_rows<const T>(rows_ref, head / heads, head % heads);
      const Rows<T> to = head_rows<T>(result, head / heads, head % heads);
      const bool* visible = mask.present() ? mask.as<const bool>() + head / heads * tokens : nullptr;
      const Range part = part_of(tokens, parts, task % parts);
      const Range kept = trim(visible, part);
      fill_rows(to, run_of_tokens({part.begin, kept.begin}), d, T(0));
      fill_rows(to, run_of_tokens({kept.end, part.end}), d, T(0));
      gemm_serial<T>(false, transposed, kept.end - kept.begin, d, d, factor, rows.at(kept.begin), rows.stride,
                     matrices + head * d * d, d, T(0), to.at(kept.begin), to.stride);
      for (std::int64_t i = kept.begin; visible != nullptr && i < kept.end; ++i) {
        if (!visible[i]) fill_rows(to, run_of_tokens({i, i + 1}), d, T(0));
      }
    }
  });
}

template <class T>
T factor_of(const AttentionProblem& problem) {
  return static_cast<T>(problem.score_scale / problem.divisor);
}

}  // namespace

// O = κ q (kᵀ v)
template <class T>
void linear_forward(Workspace& workspace, const AttentionProblem& problem, const TensorRef& out,
                    const TensorRef& state) {
  const Sizes sizes(problem);
  const std::int64_t d = sizes.head_dim;
  T* kv = state.present() ? state.as<T>() : workspace.allocate<T>(sizes.batch * sizes.heads * d * d);
  products_over_tokens<T>(workspace, problem.k, problem.v, problem.key_mask, kv);
  products_by_token<T>(problem.q, kv, false, problem.query_mask, factor_of<T>(problem), out);
}

// dq = κ G (kᵀ v)ᵀ      dk = κ v (qᵀ G)ᵀ      dv = κ k (qᵀ G)
template <class T>
void linear_backward(Workspace& workspace, const AttentionProblem& problem, const TensorRef&, const TensorRef& state,
                     const TensorRef& grad, const AttentionGradients& gradients) {
  const Sizes sizes(problem);
  const T factor = factor_of<T>(problem);
  products_by_token<T>(grad, state.as<const T>(), true, problem.query_mask, factor, gradients.dq);
  if (!gradients.dk.present() && !gradients.dv.present()) return;
  T* qg = workspace.allocate<T>(sizes.batch * sizes.heads * sizes.head_dim * sizes.head_dim);
  products_over_tokens<T>(workspace, problem.q, grad, problem.query_mask, qg);
  products_by_token<T>(problem.v, qg, true, problem.key_mask, factor, gradients.dk);
  products_by_token<T>(problem.k, qg, false, problem.key_mask, factor, gradients.dv);
}

#define POLYGRAD_INSTANTIATE(T)                                                                             \
  template void linear_forward<T>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&); \
  template void linear_backward<T>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&, \
                                   const TensorRef&, const AttentionGradients&);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention
