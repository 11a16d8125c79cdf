// Frobenius norms of P and of its Jacobians on a GPU, for each (batch, head); the formulas stand in
// ops/cpu/attention_norms.cpp. All in f64, with the matrices in memory: a probe looks at a few samples.
#include "ops/cuda/attention_paths.h"
#include "ops/cuda/attention_tile.h"
#include "ops/cuda/products.h"

#include "engine/backend/kernels.h"

namespace polygrad::cuda::attention {
namespace {

// What a row i of a head adds to the squares of the four norms.
struct RowSquares {
  double a = 0, j_s = 0, j_q = 0, j_k = 0;
};

// (B, H, rows, columns) in f64, contiguous, of fresh scratch memory.
TensorRef scratch(Workspace& workspace, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                  std::int64_t columns) {
  TensorRef ref;
  ref.dtype = DType::f64;
  ref.dim = 4;
  ref.sizes[0] = batch, ref.sizes[1] = heads, ref.sizes[2] = rows, ref.sizes[3] = columns;
  ref.strides[3] = 1, ref.strides[2] = columns, ref.strides[1] = rows * columns;
  ref.strides[0] = heads * rows * columns;
  ref.data = workspace.allocate<double>(batch * heads * rows * columns);
  return ref;
}

TensorRef in_f64(Workspace& workspace, const TensorRef& x) {
  const TensorRef result = scratch(workspace, x.sizes[0], x.sizes[1], x.sizes[2], x.sizes[3]);
  cuda_engine_kernels(workspace.device().index).copy(x, result);
  return result;
}

// squares[row] = ‖row‖², a warp a row.
__global__ void squares_kernel(const double* rows, std::int64_t count, std::int64_t width, double* squares) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * (kTileThreads / kWarp) + warp_of_thread();
  if (row >= count) return;
  double sum = 0;
  for (std::int64_t e = lane_of_thread(); e < width; e += kWarp) sum += rows[row * width + e] * rows[row * width + e];
  sum = warp_sum(sum);
  if (lane_of_thread() == 0) squares[row] = sum;
}

const double* squares_of(Workspace& workspace, const TensorRef& rows) {
  const std::int64_t count = rows.sizes[0] * rows.sizes[1] * rows.sizes[2];
  double* squares = workspace.allocate<double>(count);
  launch("attention_norms", {.x = ceil_div(count, kTileThreads / kWarp)}, kTileThreads, 0, squares_kernel,
         rows.as<const double>(), count, rows.sizes[3], squares);
  return squares;
}

struct Lengths {
  const double *x, *q, *k;  // ‖x_i‖² (B, N), ‖q_i‖² (B, H, Nq), ‖k_j‖² (B, H, Nk)
};

struct RowPlace {
  std::int64_t row, b, h, i;
};
__device__ __forceinline__ RowPlace place_of_row(const Problem<double>& p) {
  const std::int64_t row = blockIdx.x, head = row / p.queries;
  return {row, head / p.heads, head % p.heads, row % p.queries};
}

// Elementwise φ: a block a row of the products q_i·k_j.
__global__ void elementwise_kernel(Problem<double> p, const double* products, Lengths lengths, RowSquares* out) {
  const RowPlace at = place_of_row(p);
  double values = 0, slopes = 0, with_keys = 0, with_tokens = 0;
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    if (!visible(p, at.b, at.i, j)) continue;
    const PhiResult<double> phi =
        phi_of(p.phi, score(p, at.b, at.h, at.i, j, products[at.row * p.keys + j]), p.inverse_divisor);
    const double slope = phi.derivative * phi.derivative;
    values += phi.value * phi.value;
    slopes += slope;
    with_keys += slope * lengths.k[(at.b * p.heads + at.h) * p.keys + j];
    with_tokens += slope * lengths.x[at.b * p.keys + j];
  }
  values = block_sum<kTileThreads>(values);
  slopes = block_sum<kTileThreads>(slopes);
  with_keys = block_sum<kTileThreads>(with_keys);
  with_tokens = block_sum<kTileThreads>(with_tokens);
  if (threadIdx.x != 0) return;
  out[at.row] = {values, slopes, lengths.x[at.b * p.queries + at.i] * with_keys, lengths.q[at.row] * with_tokens};
}

// Σ_j f_ij² ‖r_j - r̄_i‖² = Σ f² ‖r‖² - 2 r̄·(Σ f² r) + ‖r̄‖² Σ f². All threads of the block get it.
__device__ double spread(const double* mean, const double* heavy, std::int64_t width, double sum, double weights) {
  double square = 0, product = 0;
  for (std::int64_t e = threadIdx.x; e < width; e += kTileThreads) {
    square += mean[e] * mean[e];
    product += mean[e] * heavy[e];
  }
  const double total = sum - 2 * block_sum<kTileThreads>(product) + block_sum<kTileThreads>(square) * weights;
  return total > 0 ? total : 0;
}

// Softmax: f = P, with f·k and f²·k, f·x and f²·x.
struct Means {
  const double *k, *heavy_k, *x, *heavy_x;
  std::int64_t k_width, x_width;
};
__global__ void softmax_kernel(Problem<double> p, const double* f, Lengths lengths, Means means, RowSquares* out) {
  const RowPlace at = place_of_row(p);
  double second = 0, third = 0, with_keys = 0, with_tokens = 0;
  for (std::int64_t j = threadIdx.x; j < p.keys; j += kTileThreads) {
    const double value = f[at.row * p.keys + j], square = value * value;
    second += square;
    third += square * value;
    with_keys += square * lengths.k[(at.b * p.heads + at.h) * p.keys + j];
    with_tokens += square * lengths.x[at.b * p.keys + j];
  }
  second = block_sum<kTileThreads>(second);
  third = block_sum<kTileThreads>(third);
  with_keys = block_sum<kTileThreads>(with_keys);
  with_tokens = block_sum<kTileThreads>(with_tokens);
  const std::int64_t k_row = at.row * means.k_width, x_row = at.row * means.x_width;
  const double of_keys = spread(means.k + k_row, means.heavy_k + k_row, means.k_width, with_keys, second);
  const double of_tokens = spread(means.x + x_row, means.heavy_x + x_row, means.x_width, with_tokens, second);
  if (threadIdx.x != 0) return;
  const double row = second - 2 * third + second * second;
  out[at.row] = {second, row > 0 ? row : 0, lengths.x[at.b * p.queries + at.i] * of_keys,
                 lengths.q[at.row] * of_tokens};
}

__global__ void square_kernel(const double* from, std::int64_t count, double* to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kTileThreads + threadIdx.x;
  if (i < count) to[i] = from[i] * from[i];
}

// norms (4, B, H): a block a head. The squares of the last two lack score_scale².
__global__ void roots_kernel(const RowSquares* rows, std::int64_t heads, std::int64_t queries, double scale,
                             double* norms) {
  const std::int64_t head = blockIdx.x;
  RowSquares sum;
  for (std::int64_t i = threadIdx.x; i < queries; i += kTileThreads) {
    const RowSquares& row = rows[head * queries + i];
    sum.a += row.a;
    sum.j_s += row.j_s;
    sum.j_q += row.j_q;
    sum.j_k += row.j_k;
  }
  const double a = block_sum<kTileThreads>(sum.a), j_s = block_sum<kTileThreads>(sum.j_s);
  const double j_q = block_sum<kTileThreads>(sum.j_q), j_k = block_sum<kTileThreads>(sum.j_k);
  if (threadIdx.x != 0) return;
  norms[head] = math::sqrt(a);
  norms[heads + head] = math::sqrt(j_s);
  norms[2 * heads + head] = scale * math::sqrt(j_q);
  norms[3 * heads + head] = scale * math::sqrt(j_k);
}

}  // namespace

void norms(Workspace& workspace, const AttentionProblem& given, const TensorRef& x, const TensorRef& norms) {
  AttentionProblem problem = given;
  problem.q = in_f64(workspace, given.q);
  problem.k = in_f64(workspace, given.k);
  if (given.bias.present()) problem.bias = in_f64(workspace, given.bias);
  TensorRef tokens = x;  // (B, 1, N, D)
  tokens.dim = 4;
  for (int i = 3; i > 1; --i) tokens.sizes[i] = x.sizes[i - 1], tokens.strides[i] = x.strides[i - 1];
  tokens.sizes[1] = 1, tokens.strides[1] = 0;
  tokens = in_f64(workspace, tokens);

  const Problem<double> p(problem);
  const std::int64_t count = p.batch * p.heads * p.queries;
  const Lengths lengths{squares_of(workspace, tokens), squares_of(workspace, problem.q),
                        squares_of(workspace, problem.k)};
  auto* rows = workspace.allocate<RowSquares>(count);
  const TensorRef f = scratch(workspace, p.batch, p.heads, p.queries, p.keys);
  if (!p.is_softmax()) {
    multiply_batches(workspace, problem.q, transposed_last(problem.k), 1, f);
    launch("attention_norms", {.x = count}, kTileThreads, 0, elementwise_kernel, p, f.as<const double>(), lengths,
           rows);
  } else {
    map(workspace, problem, f);
    const TensorRef squared = scratch(workspace, p.batch, p.heads, p.queries, p.keys);
    launch("attention_norms", {.x = ceil_div(f.numel(), kTileThreads)}, kTileThreads, 0, square_kernel,
           f.as<const double>(), f.numel(), squared.as<double>());
    TensorRef shared_tokens = tokens;  // each head reads the same
    shared_tokens.sizes[1] = p.heads, shared_tokens.strides[1] = 0;
    const auto mean_of = [&](const TensorRef& weights, const TensorRef& of) {
      const TensorRef result = scratch(workspace, p.batch, p.heads, p.queries, of.sizes[3]);
      multiply_batches(workspace, weights, of, 1, result);
      return result.as<const double>();
    };
    const Means means{mean_of(f, problem.k),
                      mean_of(squared, problem.k),
                      mean_of(f, shared_tokens),
                      mean_of(squared, shared_tokens),
                      p.width,
                      tokens.sizes[3]};
    launch("attention_norms", {.x = count}, kTileThreads, 0, softmax_kernel, p, f.as<const double>(), lengths, means,
           rows);
  }
  const double scale = problem.score_scale < 0 ? -problem.score_scale : problem.score_scale;
  launch("attention_norms", {.x = p.batch * p.heads}, kTileThreads, 0, roots_kernel, rows, p.batch * p.heads, p.queries,
         scale, norms.as<double>());
}

}  // namespace polygrad::cuda::attention
