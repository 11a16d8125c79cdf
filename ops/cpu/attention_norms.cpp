// Frobenius norms of P and of its Jacobians, for each (batch, head); all in f64.
//
// Where this stands: beside the paths; called by the probes. With φ' = φ'(s_ij), M the masks, κ = score_scale/c:
//     elementwise φ:  A² = Σ (φ/c)²                        J_S² = Σ (φ'/c)²
//                     J_Q² = κ² Σ φ'² ‖x_i‖² ‖k_j‖²         J_K² = κ² Σ φ'² ‖q_i‖² ‖x_j‖²       (sums over allowed
//                     pairs)
//     softmax, f = P: A² = Σ f²                            J_S² = Σ_i [Σ_j f² - 2 Σ_j f³ + (Σ_j f²)²]
//                     J_Q² = score_scale² Σ_i ‖x_i‖² Σ_j f_ij² ‖k_j - k̄_i‖²,  k̄_i = Σ_j f_ij k_j;   J_K² with q_i, x_j
// (dP_ij/dW_q = φ'(s_ij) κ x_i k_jᵀ, a matrix of norm |φ'| κ ‖x_i‖ ‖k_j‖; for softmax k_j is measured from the mean
// that the row's normalisation takes away, and ‖diag f - f fᵀ‖² gives J_S.)
#include <cmath>
#include <limits>

#include "engine/parallel.h"
#include "ops/cpu/attention_block.h"
#include "ops/cpu/attention_paths.h"
#include "ops/cpu/attention_softmax.h"
#include "ops/cpu/gemm.h"
#include "ops/kernels/attention_activation.h"

namespace polygrad::cpu::attention {
namespace {

constexpr std::int64_t kPanel = 64;

struct Squares {
  double a = 0, j_s = 0, j_q = 0, j_k = 0;
};

// One head in f64: its rows, contiguous, and their squared lengths.
struct HeadRows {
  double* rows;     // (N, width)
  double* squares;  // (N)
  std::int64_t width;

  template <class T>
  HeadRows(Workspace& workspace, const Rows<const T>& from, std::int64_t count, std::int64_t width_)
      : rows(workspace.allocate<double>(count * width_)), squares(workspace.allocate<double>(count)), width(width_) {
    for (std::int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (std::int64_t e = 0; e < width; ++e) {
        const double value = static_cast<double>(from.at(i)[e]);
        rows[i * width + e] = value;
        sum += value * value;
      }
      squares[i] = sum;
    }
  }
};

struct HeadProblem {
  const AttentionProblem& problem;
  HeadRows x, q, k;
};

template <class T>
HeadProblem head_problem(Workspace& workspace, const AttentionProblem& problem, const TensorRef& x, std::int64_t b,
                         std::int64_t h) {
  const Sizes sizes(problem);
  const Rows<const T> x_rows{x.as<const T>() + b * x.strides[0], x.strides[1]};
  return {problem,
          {workspace, x_rows, sizes.keys, x.sizes[2]},
          {workspace, head_rows<const T>(problem.q, b, h), sizes.queries, sizes.head_dim},
          {workspace, head_rows<const T>(problem.k, b, h), sizes.keys, sizes.head_dim}};
}

template <class T>
void scores_of(const HeadProblem& head, const Block& block, double* s) {
  const AttentionProblem& p = head.problem;
  gemm_serial<double>(false, true, block.rows, block.cols, head.q.width, p.score_scale,
                      head.q.rows + block.row * head.q.width, head.q.width, head.k.rows, head.k.width, 0.0, s,
                      block.cols);
  if (!p.bias.present()) return;
  const T* bias = p.bias.as<const T>() +
                  ((block.b % p.bias.sizes[0] * p.bias.sizes[1] + block.h) * p.bias.sizes[2] + block.row) * block.cols;
  for (std::int64_t i = 0; i < block.rows * block.cols; ++i) s[i] += static_cast<double>(bias[i]);
}

Squares elementwise_squares(const HeadProblem& head, const Block& block, double* s, double* derivative) {
  const AttentionProblem& p = head.problem;
  const std::int64_t count = block.rows * block.cols;
  for (std::int64_t i = 0; i < count; ++i) derivative[i] = 1;
  phi_loops<double>(p.phi).gradient(s, derivative, count);
  hide_pairs(p, block, 0.0, s, derivative);
  Squares sum;
  for (std::int64_t i = 0; i < block.rows; ++i) {
    double values = 0, derivatives = 0, with_keys = 0, with_tokens = 0;
    for (std::int64_t j = 0; j < block.cols; ++j) {
      const double value = s[i * block.cols + j], slope = derivative[i * block.cols + j];
      values += value * value;
      derivatives += slope * slope;
      with_keys += slope * slope * head.k.squares[j];
      with_tokens += slope * slope * head.x.squares[j];
    }
    sum.a += values;
    sum.j_s += derivatives;
    sum.j_q += head.x.squares[block.row + i] * with_keys;
    sum.j_k += head.q.squares[block.row + i] * with_tokens;
  }
  return sum;
}

// spread[i] = Σ_j f_ij² ‖r_j - r̄_i‖² with r̄_i = Σ_j f_ij r_j, as Σ f² ‖r‖² - 2 r̄·(Σ f² r) + ‖r̄‖² Σ f²: two products.
// squared: f², like f; mean and heavy: (rows, width).
void spread_of_rows(const double* f, const double* squared, const Block& block, const HeadRows& r, double* mean,
                    double* heavy, double* spread) {
  const std::int64_t cols = block.cols, width = r.width;
  gemm_serial<double>(false, false, block.rows, width, cols, 1.0, f, cols, r.rows, width, 0.0, mean, width);
  gemm_serial<double>(false, false, block.rows, width, cols, 1.0, squared, cols, r.rows, width, 0.0, heavy, width);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    double weights = 0, sum = 0, mean_square = 0, mean_heavy = 0;
    for (std::int64_t j = 0; j < cols; ++j) {
      weights += squared[i * cols + j];
      sum += squared[i * cols + j] * r.squares[j];
    }
    for (std::int64_t e = 0; e < width; ++e) {
      mean_square += mean[i * width + e] * mean[i * width + e];
      mean_heavy += mean[i * width + e] * heavy[i * width + e];
    }
    const double total = sum - 2 * mean_heavy + mean_square * weights;
    spread[i] = total > 0 ? total : 0;
  }
}

Squares softmax_squares(Workspace& workspace, const HeadProblem& head, const Block& block, double* s, double* squared) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::int64_t cols = block.cols, width = head.x.width > head.k.width ? head.x.width : head.k.width;
  hide_pairs(head.problem, block, -infinity, s);
  Squares sum;
  for (std::int64_t i = 0; i < block.rows; ++i) {
    double* f = s + i * cols;
    exponentiate(f, cols, row_maximum(f, cols, -infinity), 1.0);
    const double total = row_sum(f, cols);
    const double inverse = total == 0 ? 0 : 1 / total;
    double second = 0, third = 0;
    for (std::int64_t j = 0; j < cols; ++j) {
      f[j] *= inverse;
      const double square = f[j] * f[j];
      squared[i * cols + j] = square;
      second += square;
      third += square * f[j];
    }
    sum.a += second;
    const double row = second - 2 * third + second * second;
    sum.j_s += row > 0 ? row : 0;
  }
  double* mean = workspace.allocate<double>(kPanel * width);
  double* heavy = workspace.allocate<double>(kPanel * width);
  double* spread = workspace.allocate<double>(kPanel);
  spread_of_rows(s, squared, block, head.k, mean, heavy, spread);
  for (std::int64_t i = 0; i < block.rows; ++i) sum.j_q += head.x.squares[block.row + i] * spread[i];
  spread_of_rows(s, squared, block, head.x, mean, heavy, spread);
  for (std::int64_t i = 0; i < block.rows; ++i) sum.j_k += head.q.squares[block.row + i] * spread[i];
  return sum;
}

// The sums lack 1/c² and, the last two, score_scale².
void write_roots(const AttentionProblem& problem, const Squares& squares, std::int64_t head, std::int64_t heads,
                 double* norms) {
  const double divisor = std::abs(problem.divisor), scale = std::abs(problem.score_scale);
  norms[head] = std::sqrt(squares.a) / divisor;
  norms[heads + head] = std::sqrt(squares.j_s) / divisor;
  norms[2 * heads + head] = scale * std::sqrt(squares.j_q) / divisor;
  norms[3 * heads + head] = scale * std::sqrt(squares.j_k) / divisor;
}

// φ = x without bias and regions: every sum over pairs is a product of sums over tokens, so the cost is O(N (d² + D)):
// A² = κ² ⟨QᵀQ, KᵀK⟩, J_S² = Nq Nk / c², J_Q² = κ² ‖X_q‖² ‖K‖², J_K² = κ² ‖Q‖² ‖X_k‖² over the visible tokens.
template <class T>
Squares linear_squares(Workspace& workspace, const AttentionProblem& problem, const TensorRef& x, std::int64_t b,
                       std::int64_t h) {
  const Sizes sizes(problem);
  const HeadProblem head = head_problem<T>(workspace, problem, x, b, h);
  const bool* query_mask = query_mask_of(problem, b);
  const bool* key_mask = key_mask_of(problem, b);
  double queries = 0, keys = 0, q = 0, k = 0, x_queries = 0, x_keys = 0;
  for (std::int64_t i = 0; i < sizes.queries; ++i) {
    const double seen = query_mask == nullptr || query_mask[i] ? 1 : 0;
    queries += seen;
    q += seen * head.q.squares[i];
    x_queries += seen * head.x.squares[i];
    for (std::int64_t e = 0; seen == 0 && e < sizes.head_dim; ++e) head.q.rows[i * sizes.head_dim + e] = 0;
  }
  for (std::int64_t j = 0; j < sizes.keys; ++j) {
    const double seen = key_mask == nullptr || key_mask[j] ? 1 : 0;
    keys += seen;
    k += seen * head.k.squares[j];
    x_keys += seen * head.x.squares[j];
    for (std::int64_t e = 0; seen == 0 && e < sizes.head_dim; ++e) head.k.rows[j * sizes.head_dim + e] = 0;
  }
  const std::int64_t d = sizes.head_dim;
  double* gram_q = workspace.allocate<double>(d * d);
  double* gram_k = workspace.allocate<double>(d * d);
  gemm_serial<double>(true, false, d, d, sizes.queries, 1.0, head.q.rows, d, head.q.rows, d, 0.0, gram_q, d);
  gemm_serial<double>(true, false, d, d, sizes.keys, 1.0, head.k.rows, d, head.k.rows, d, 0.0, gram_k, d);
  double inner = 0;
  for (std::int64_t e = 0; e < d * d; ++e) inner += gram_q[e] * gram_k[e];
  const double scale = problem.score_scale * problem.score_scale;
  return {scale * (inner > 0 ? inner : 0), queries * keys, x_queries * k, q * x_keys};
}

}  // namespace

template <class T>
void frobenius_norms(Workspace& workspace, const AttentionProblem& problem, const TensorRef& x,
                     const TensorRef& norms) {
  const Sizes sizes(problem);
  const std::int64_t heads = sizes.batch * sizes.heads;
  if (problem.phi == attention_activation::kIdentity && !problem.bias.present() && !problem.regions.present()) {
    parallel_for(0, heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        Workspace scratch;
        write_roots(problem, linear_squares<T>(scratch, problem, x, head / sizes.heads, head % sizes.heads), head,
                    heads, norms.as<double>());
      }
    });
    return;
  }
  const std::int64_t panels = (sizes.queries + kPanel - 1) / kPanel;
  Squares* parts = workspace.allocate<Squares>(heads * panels);
  // A task takes consecutive panels of one head, so that the head is converted to f64 few times.
  const std::int64_t tasks_per_head = heads >= 32 ? 1 : (panels < 32 / heads + 1 ? panels : 32 / heads + 1);
  parallel_for(0, heads * tasks_per_head, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / tasks_per_head, b = head / sizes.heads, h = head % sizes.heads;
      Workspace scratch;
      const HeadProblem rows = head_problem<T>(scratch, problem, x, b, h);
      double* s = scratch.allocate<double>(kPanel * sizes.keys);
      double* second = scratch.allocate<double>(kPanel * sizes.keys);
      const Range range = part_of(panels, tasks_per_head, task % tasks_per_head);
      for (std::int64_t panel = range.begin; panel < range.end; ++panel) {
        const std::int64_t row = panel * kPanel;
        const Block block{b, h, row, row + kPanel < sizes.queries ? kPanel : sizes.queries - row, 0, sizes.keys};
        Workspace panel_scratch;
        scores_of<T>(rows, block, s);
        parts[head * panels + panel] = problem.phi == attention_activation::kSoftmax
                                           ? softmax_squares(panel_scratch, rows, block, s, second)
                                           : elementwise_squares(rows, block, s, second);
      }
    }
  });
  for (std::int64_t head = 0; head < heads; ++head) {
    Squares sum;
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const Squares& part = parts[head * panels + panel];
      sum.a += part.a;
      sum.j_s += part.j_s;
      sum.j_q += part.j_q;
      sum.j_k += part.j_k;
    }
    write_roots(problem, sum, head, heads, norms.as<double>());
  }
}

template void frobenius_norms<float>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&);
template void frobenius_norms<double>(Workspace&, const AttentionProblem&, const TensorRef&, const TensorRef&);

}  // namespace polygrad::cpu::attention
