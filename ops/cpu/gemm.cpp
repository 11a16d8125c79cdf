// The plan of a product, its blocks on the pool, and the sum of its slices.
#include "ops/cpu/gemm.h"

#include <algorithm>
#include <type_traits>

#include "engine/bfloat16.h"
#include "engine/profile_hooks.h"
#include "ops/cpu/gemm_bf16.h"
#include "ops/gemm_provider.h"

namespace polygrad::cpu {
namespace {

constexpr std::int64_t kRowBlock = 256;
constexpr std::int64_t kMinTail = 16;        // fewer rows than this are not worth a block of their own
constexpr std::int64_t kRound = 16;          // one AVX-512 register of floats
constexpr std::int64_t kMinCols = 96;        // of a split block
constexpr std::int64_t kMinColsLongK = 192;  // where slices of k can make the tasks instead: wide blocks run faster
constexpr std::int64_t kEnoughTasks = 32;    // for 16 threads with blocks of unequal length
constexpr std::int64_t kMinSlice = 512;      // of k
constexpr std::int64_t kMinTask = 1 << 20;   // multiply-adds; below this a task costs more than it saves
constexpr std::int64_t kReduceElements = 1 << 14;  // of C in a task that adds slices
constexpr std::int64_t kMinPackedRows = 32;        // of a block: below, oneDNN's bf16 products lose more than 5 %

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Some of the batch dimensions, counted as one index.
struct BatchIndex {
  struct Offsets {
    std::int64_t a = 0, b = 0, c = 0;
  };

  int dims = 0;
  std::int64_t count = 1;
  std::int64_t sizes[kMaxGemmBatchDims], a[kMaxGemmBatchDims], b[kMaxGemmBatchDims], c[kMaxGemmBatchDims];

  void push(std::int64_t size, std::int64_t stride_a, std::int64_t stride_b, std::int64_t stride_c) {
    sizes[dims] = size;
    a[dims] = stride_a;
    b[dims] = stride_b;
    c[dims] = stride_c;
    count *= size;
    ++dims;
  }
  Offsets at(std::int64_t index) const {
    Offsets offsets;
    for (int d = dims - 1; d >= 0; --d) {
      const std::int64_t i = index % sizes[d];
      index /= sizes[d];
      offsets.a += i * a[d];
      offsets.b += i * b[d];
      offsets.c += i * c[d];
    }
    return offsets;
  }
};

template <class T>
void scale_block(std::int64_t m, std::int64_t n, T beta, T* c, std::int64_t ldc) {
  if (beta == T(1)) return;
  for (std::int64_t i = 0; i < m; ++i) {
    T* row = c + i * ldc;
    if (beta == T(0)) {
      std::fill(row, row + n, T(0));  // not a product: 0 * NaN is NaN
    } else {
      for (std::int64_t j = 0; j < n; ++j) row[j] *= beta;
    }
  }
}

void provider_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                   const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                   std::int64_t ldc) {
  if (gemm_provider() == GemmProvider::onednn) {
    onednn_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  } else {
    eigen_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }
}

void provider_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                   const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                   std::int64_t ldc) {
  eigen_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

// One block, by what its product is.
template <class T>
void block_product(const Gemm<T, T>& g, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, T beta,
                   T* c, std::int64_t ldc, std::int64_t) {
  gemm_serial(g.trans_a, g.trans_b, m, n, k, g.alpha, a, g.lda, b, g.ldb, beta, c, ldc);
}
void block_product(const Gemm<BFloat16, float>& g, std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a,
                   const BFloat16* b, float beta, float* c, std::int64_t ldc, std::int64_t) {
  if (g.packed_b) return gemm_packed_serial(m, n, k, a, g.lda, b, nullptr, beta, c, ldc);
  gemm_serial(g.trans_a, g.trans_b, m, n, k, g.alpha, a, g.lda, b, g.ldb, beta, c, ldc);
}
void block_product(const Gemm<BFloat16, BFloat16>& g, std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a,
                   const BFloat16* b, float, BFloat16* c, std::int64_t ldc, std::int64_t col) {
  const float* bias = g.bias == nullptr ? nullptr : g.bias + col;
  if (g.packed_b) return gemm_packed_serial(m, n, k, a, g.lda, b, bias, c, ldc);
  gemm_serial(g.trans_a, g.trans_b, m, n, k, a, g.lda, b, g.ldb, bias, c, ldc);
}

// One product after the plan: what a task needs to know.
template <class T, class Out>
struct Blocks {
  using Scale = typename Gemm<T, Out>::Scale;

  const Gemm<T, Out>& g;
  const GemmPlan plan;
  BatchIndex kept;    // the matrices of C
  BatchIndex summed;  // the products added into each
  Out* partial;       // slices 1, 2, ... of each matrix of C, (m, n) each
  GemmEpilogue epilogue;

  std::int64_t tiles() const { return plan.row_blocks * plan.col_blocks; }

  void run(std::int64_t task) const {
    const std::int64_t tile = task % tiles(), slice = task / tiles() % plan.k_slices,
                       matrix = task / tiles() / plan.k_slices;
    const std::int64_t row = tile / plan.col_blocks * plan.row_block, col = tile % plan.col_blocks * plan.col_block;
    const std::int64_t rows = tile / plan.col_blocks + 1 == plan.row_blocks ? g.m - row : plan.row_block;
    const std::int64_t cols = tile % plan.col_blocks + 1 == plan.col_blocks ? g.n - col : plan.col_block;
    const std::int64_t depth_begin = slice * plan.k_slice, depth = std::min(g.k - depth_begin, plan.k_slice);

    const BatchIndex::Offsets place = kept.at(matrix);
    const std::int64_t offset = place.c + row * g.ldc + col;
    Out* c = g.c + offset;
    std::int64_t ldc = g.ldc;
    Scale beta = g.beta;
    if (slice > 0) {
      c = partial + ((matrix * (plan.k_slices - 1) + slice - 1) * g.m + row) * g.n + col;
      ldc = g.n;
      beta = 0;
    }
    const T* a = g.a + place.a + (g.trans_a ? depth_begin * g.lda + row : row * g.lda + depth_begin);
    const T* b = g.b + place.b + (g.trans_b ? col * g.ldb + depth_begin : depth_begin * g.ldb + col);
    for (std::int64_t s = 0; s < summed.count; ++s) {
      const BatchIndex::Offsets shift = summed.at(s);
      block_product(g, rows, cols, depth, a + shift.a, b + shift.b, s == 0 ? beta : Scale(1), c, ldc, col);
    }
    if constexpr (!std::is_same_v<Out, BFloat16>) {
      if (summed.count == 0) scale_block(rows, cols, beta, c, ldc);
    }
    if (plan.k_slices == 1) epilogue(offset, rows, cols, col);
  }

  // Rows [begin, begin + rows) of a matrix of C: slice 0 lies there already, the others are added in order.
  void add_slices(std::int64_t matrix, std::int64_t begin, std::int64_t rows) const {
    const std::int64_t offset = kept.at(matrix).c + begin * g.ldc;
    if constexpr (!std::is_same_v<Out, BFloat16>) {
      for (std::int64_t i = 0; i < rows; ++i) {
        Out* row = g.c + offset + i * g.ldc;
        for (std::int64_t slice = 1; slice < plan.k_slices; ++slice) {
          const Out* part = partial + ((matrix * (plan.k_slices - 1) + slice - 1) * g.m + begin + i) * g.n;
          for (std::int64_t j = 0; j < g.n; ++j) row[j] += part[j];
        }
      }
    }
    epilogue(offset, rows, g.n, 0);
  }
};

// Calls f(matrix, first row, rows) for pieces of all matrices of C, on the pool.
template <class F>
void for_each_rows(std::int64_t matrices, std::int64_t m, std::int64_t n, const F& f) {
  const std::int64_t rows = std::max<std::int64_t>(1, kReduceElements / n), parts = ceil_div(m, rows);
  parallel_for(0, matrices * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t first = part % parts * rows;
      f(part / parts, first, std::min(rows, m - first));
    }
  });
}

// A bf16 result whose sums are not formed by one call: in f32 first, then rounded once.
void gemm_through_f32(Workspace& workspace, const Gemm<BFloat16, BFloat16>& g, const BatchIndex& kept,
                      GemmEpilogue epilogue) {
  Gemm<BFloat16, float> wide;
  wide.trans_a = g.trans_a;
  wide.trans_b = g.trans_b;
  wide.packed_b = g.packed_b;
  wide.m = g.m;
  wide.n = g.n;
  wide.k = g.k;
  wide.alpha = g.alpha;
  wide.a = g.a;
  wide.lda = g.lda;
  wide.b = g.b;
  wide.ldb = g.ldb;
  wide.c = workspace.allocate<float>(kept.count * g.m * g.n);
  wide.ldc = g.n;
  wide.batch_dims = g.batch_dims;
  std::int64_t stride = g.m * g.n;
  for (std::int32_t d = g.batch_dims - 1; d >= 0; --d) {
    wide.batch_sizes[d] = g.batch_sizes[d];
    wide.batch_a[d] = g.batch_a[d];
    wide.batch_b[d] = g.batch_b[d];
    const bool is_summed = g.batch_c[d] == 0 && g.batch_sizes[d] != 1;
    wide.batch_c[d] = is_summed ? 0 : stride;
    if (!is_summed) stride *= g.batch_sizes[d];
  }
  gemm(workspace, wide);
  for_each_rows(kept.count, g.m, g.n, [&](std::int64_t matrix, std::int64_t first, std::int64_t rows) {
    const std::int64_t offset = kept.at(matrix).c + first * g.ldc;
    for (std::int64_t i = 0; i < rows; ++i) {
      float* row = wide.c + (matrix * g.m + first + i) * g.n;
      if (g.bias != nullptr) {
        for (std::int64_t j = 0; j < g.n; ++j) row[j] += g.bias[j];
      }
      round_row(row, g.c + offset + i * g.ldc, g.n);
    }
    epilogue(offset, rows, g.n, 0);
  });
}

}  // namespace

GemmPlan plan_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmPlan plan{m, 1, n, 1, k, 1};
  const auto tiles = [&] { return std::max<std::int64_t>(1, batch * plan.row_blocks * plan.col_blocks); };

  if (m >= kRowBlock + kMinTail) {
    plan.row_block = round_up(ceil_div(m, ceil_div(m - kMinTail + 1, kRowBlock)), kRound);
    plan.row_blocks = ceil_div(m - kMinTail + 1, plan.row_block);
  }
  const std::int64_t min_cols = k >= 2 * kMinSlice ? kMinColsLongK : kMinCols;
  while (tiles() < kEnoughTasks) {
    const std::int64_t half = round_up(ceil_div(plan.col_block, 2), kRound);
    if (half < min_cols || plan.row_block * half * k < kMinTask) break;
    plan.col_block = half;
    plan.col_blocks = ceil_div(n, half);
  }
  const std::int64_t slices =
      std::clamp<std::int64_t>(kEnoughTasks / tiles(), 1, std::max<std::int64_t>(1, k / kMinSlice));
  if (slices > 1) {
    plan.k_slice = round_up(ceil_div(k, slices), kRound);
    plan.k_slices = ceil_div(k, plan.k_slice);
  }
  return plan;
}

GemmPlan plan_gemm_packed(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmPlan plan{m, 1, n, 1, k, 1};
  const std::int64_t wanted = ceil_div(m * std::max<std::int64_t>(1, batch), kEnoughTasks);
  const std::int64_t rows = std::clamp(round_up(wanted, kRound), kMinPackedRows, kRowBlock);
  if (m >= rows + kMinTail) {
    plan.row_block = round_up(ceil_div(m, ceil_div(m - kMinTail + 1, rows)), kRound);
    plan.row_blocks = ceil_div(m - kMinTail + 1, plan.row_block);
  }
  return plan;
}

template <class T>
void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                 std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale_block(m, n, beta, c, ldc);
  const std::int64_t start = detail::product_begins();
  provider_gemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  detail::product_ends(start, m * n * k);
}

template <class T, class Out>
void gemm(Workspace& workspace, const Gemm<T, Out>& product, GemmEpilogue epilogue) {
  BatchIndex kept, summed;
  for (std::int32_t d = 0; d < product.batch_dims; ++d) {
    BatchIndex& index = product.batch_c[d] == 0 && product.batch_sizes[d] != 1 ? summed : kept;
    index.push(product.batch_sizes[d], product.batch_a[d], product.batch_b[d], product.batch_c[d]);
  }
  if (product.m == 0 || product.n == 0 || kept.count == 0) return;

  const GemmPlan plan = product.packed_b ? plan_gemm_packed(kept.count, product.m, product.n, product.k)
                                         : plan_gemm(kept.count, product.m, product.n, product.k);
  if constexpr (std::is_same_v<Out, BFloat16>) {
    if (plan.k_slices > 1 || summed.count != 1 || product.alpha != 1) {
      return gemm_through_f32(workspace, product, kept, epilogue);
    }
  }
  Blocks<T, Out> blocks{product, plan, kept, summed, nullptr, epilogue};
  if (plan.k_slices > 1) {
    blocks.partial = workspace.allocate<Out>(kept.count * (plan.k_slices - 1) * product.m * product.n);
  }
  const std::int64_t tasks = kept.count * plan.k_slices * blocks.tiles();
  const std::int64_t work = plan.row_block * plan.col_block * plan.k_slice * summed.count;
  parallel_for(0, tasks, std::max<std::int64_t>(1, kMinTask / std::max<std::int64_t>(1, work)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) blocks.run(task);
               });
  if (plan.k_slices == 1) return;
  for_each_rows(kept.count, product.m, product.n, [&](std::int64_t matrix, std::int64_t first, std::int64_t rows) {
    blocks.add_slices(matrix, first, rows);
  });
}

template void gemm_serial<float>(bool, bool, std::int64_t, std::int64_t, std::int64_t, float, const float*,
                                 std::int64_t, const float*, std::int64_t, float, float*, std::int64_t);
template void gemm_serial<double>(bool, bool, std::int64_t, std::int64_t, std::int64_t, double, const double*,
                                  std::int64_t, const double*, std::int64_t, double, double*, std::int64_t);
template void gemm(Workspace&, const Gemm<float, float>&, GemmEpilogue);
template void gemm(Workspace&, const Gemm<double, double>&, GemmEpilogue);
template void gemm(Workspace&, const Gemm<BFloat16, float>&, GemmEpilogue);
template void gemm(Workspace&, const Gemm<BFloat16, BFloat16>&, GemmEpilogue);

}  // namespace polygrad::cpu
