// Layer normalisation on a GPU: each row is read once, forward and backward, and kept in registers between its passes.
//
// The gradients of weight and bias are summed on the way: in registers down a block's rows, then over the blocks in
// f64.
#include "ops/kernels/norm.h"

#include "engine/backend/cuda/walk.h"
#include "engine/math.h"
#include "ops/cuda/columns.h"
#include "ops/cuda/norm.h"
#include "ops/cuda/rows.h"

namespace polygrad::cuda {
namespace {

// x̂ = (x - high)·scale + shift, where mean = high + low, scale = rstd and shift = -low·rstd.
template <class C>
struct Centre {
  C high, scale, shift;
  POLYGRAD_INLINE Centre(double mean, double rstd)
      : high(static_cast<C>(mean)),
        scale(static_cast<C>(rstd)),
        shift(static_cast<C>((static_cast<double>(high) - mean) * rstd)) {}
  POLYGRAD_INLINE C operator()(C x) const { return math::fma(x - high, scale, shift); }
};

struct Moments {
  double mean, variance;
};

// A mean, then what is left of it, and the squares, about the first. In f64 where a float doesn't hold the squares.
template <class G>
__device__ Moments moments_of(const Row<G>& row, double inverse_n) {
  using C = typename G::C;
  using S = typename G::S;
  S sum = 0;
  row.each([&](int, int, std::int64_t, C x) { sum += static_cast<S>(x); });
  const C about = static_cast<C>(static_cast<double>(group_sum<G::kThreads>(sum)) * inverse_n);
  S rest = 0, squares = 0;
  row.each([&](int, int, std::int64_t, C x) {
    const S centred = static_cast<S>(x - about);
    rest += centred;
    squares += centred * centred;
  });
  const double left = static_cast<double>(group_sum<G::kThreads>(rest)) * inverse_n;
  const double total = static_cast<double>(group_sum<G::kThreads>(squares));
  if (sizeof(S) == 8 || (total > 1e-24 && total < 1e38)) {
    const double variance = total * inverse_n - left * left;
    return {static_cast<double>(about) + left, variance > 0 ? variance : 0.0};
  }
  double wide = 0;
  row.each([&](int, int, std::int64_t, C x) { wide += static_cast<double>(x); });
  const double mean = group_sum<G::kThreads>(wide) * inverse_n;
  wide = 0;
  row.each([&](int, int, std::int64_t, C x) {
    const double centred = static_cast<double>(x) - mean;
    wide += centred * centred;
  });
  return {mean, group_sum<G::kThreads>(wide) * inverse_n};
}

template <class G, class C = typename G::C>
__global__ void __launch_bounds__(kRowThreads, 2)
    forward_kernel(RowShape shape, Input<C> x, Input<C> weight, Input<C> bias, double eps, Output<C> y, double* mean,
                   double* rstd) {
  const std::int64_t index = group_index<G>(), first = index * shape.n;
  if (index >= shape.rows) return;  // a whole warp: in a block's group every block has a row
  const Row<G> row(shape, x, first);
  const Moments moments = moments_of(row, shape.inverse_n);
  const double inverse = 1.0 / math::sqrt(moments.variance + eps);
  const Centre<C> centre(moments.mean, inverse);
  each_pack<G>(shape, [&](int slot, std::int64_t pack) {
    C value[G::kCount], scale[G::kCount], shift[G::kCount];
    row.get(slot, pack, value);
#pragma unroll
    for (int j = 0; j < G::kCount; ++j) scale[j] = C(1), shift[j] = C(0);
    if (weight.present()) read_pack(shape, weight, 0, pack, scale);
    if (bias.present()) read_pack(shape, bias, 0, pack, shift);
#pragma unroll
    for (int j = 0; j < G::kCount; ++j) value[j] = math::fma(centre(value[j]), scale[j], shift[j]);
    write_pack(shape, y, first, pack, value);
  });
  if (group_thread<G>() == 0) {
    mean[index] = moments.mean;
    rstd[index] = inverse;
  }
}

void layer_norm(Workspace&, const TensorRef& x, const TensorRef& weight, const TensorRef& bias, double eps,
                const TensorRef& y, const TensorRef& mean, const TensorRef& rstd) {
  if (x.numel() == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const RowShape shape = row_shape<C>(x.sizes[0], x.sizes[1], x, weight, bias, y);
    dispatch_rows<C>(shape.n, [&](auto group) {
      using G = decltype(group);
      launch("layer_norm", {.x = ceil_div(shape.rows, G::kGroups)}, kRowThreads, 0, forward_kernel<G>, shape,
             Input<C>(x), Input<C>(weight), Input<C>(bias), eps, Output<C>(y), mean.as<double>(), rstd.as<double>());
    });
  });
}

// --- backward -------------------------------------------------------------------------------------------------------

template <class C>
struct Backward {
  RowShape shape;
  std::int64_t rows_per_block;
  Input<C> g, x, weight, add;
  const double *mean, *rstd;
  Output<C> dx;     // or absent
  double* partial;  // of each block: dweight (n), dbias (n); or null
};

template <class G, class C = typename G::C>
__global__ void __launch_bounds__(kRowThreads, 2) backward_kernel(Backward<C> b) {
  using S = typename G::S;
  const RowShape& shape = b.shape;
  C products[G::kSlots][G::kCount] = {}, sums[G::kSlots][G::kCount] = {};  // down the rows
  const std::int64_t block_begin = static_cast<std::int64_t>(blockIdx.x) * b.rows_per_block;
  const std::int64_t block_end =
      block_begin + b.rows_per_block < shape.rows ? block_begin + b.rows_per_block : shape.rows;
  for (std::int64_t index = block_begin + static_cast<int>(threadIdx.x) / G::kThreads; index < block_end;
       index += G::kGroups) {
    const std::int64_t first = index * shape.n;
    const Row<G> upstream(shape, b.g, first), row(shape, b.x, first);
    const Centre<C> centre(b.mean[index], b.rstd[index]);
    S sum = 0, product = 0;
    each_pack<G>(shape, [&](int slot, std::int64_t pack) {
      C g[G::kCount], x[G::kCount], scale[G::kCount];
      upstream.get(slot, pack, g);
      row.get(slot, pack, x);
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) scale[j] = C(1);
      if (b.weight.present()) read_pack(shape, b.weight, 0, pack, scale);
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) {  // beyond the row's end g is 0
        const C normalised = centre(x[j]), h = g[j] * scale[j];
        sum += static_cast<S>(h);
        product += static_cast<S>(h) * static_cast<S>(normalised);
        if constexpr (G::kCached) {
          products[slot][j] = math::fma(g[j], normalised, products[slot][j]);
          sums[slot][j] += g[j];
        }
      }
    });
    if (!b.dx.present()) continue;
    const C mean_h = static_cast<C>(static_cast<double>(group_sum<G::kThreads>(sum)) * shape.inverse_n);
    const C mean_product = static_cast<C>(static_cast<double>(group_sum<G::kThreads>(product)) * shape.inverse_n);
    each_pack<G>(shape, [&](int slot, std::int64_t pack) {
      C g[G::kCount], x[G::kCount], scale[G::kCount], start[G::kCount];
      upstream.get(slot, pack, g);
      row.get(slot, pack, x);
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) scale[j] = C(1), start[j] = C(0);
      if (b.weight.present()) read_pack(shape, b.weight, 0, pack, scale);
      if (b.add.present()) read_pack(shape, b.add, first, pack, start);
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) {
        const C rest = math::fma(centre(x[j]), -mean_product, g[j] * scale[j] - mean_h);
        x[j] = math::fma(rest, centre.scale, start[j]);
      }
      write_pack(shape, b.dx, first, pack, x);
    });
  }
  if constexpr (G::kCached) {
    if (b.partial == nullptr) return;
    // Over the block's groups, in order: each puts what it has of a step beside the others'.
    double* to = b.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * shape.n;
    __shared__ C beside[2][G::kGroups][G::kThreads][G::kCount];
    const int group = static_cast<int>(threadIdx.x) / G::kThreads, thread = group_thread<G>();
#pragma unroll
    for (int step = 0; step < G::kSteps; ++step) {
      __syncthreads();
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) {
        beside[0][group][thread][j] = products[step][j];
        beside[1][group][thread][j] = sums[step][j];
      }
      __syncthreads();
      if (group != 0) continue;
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) {
        const std::int64_t column = (thread + step * G::kThreads) * G::kCount + j;
        if (column >= shape.n) continue;
        double dweight = 0, dbias = 0;
        for (int other = 0; other < G::kGroups; ++other) {
          dweight += static_cast<double>(beside[0][other][thread][j]);
          dbias += static_cast<double>(beside[1][other][thread][j]);
        }
        to[column] = dweight;
        to[shape.n + column] = dbias;
      }
    }
  }
}

// For rows that registers don't hold.
template <class C_>
struct ParameterTerms {
  using C = C_;
  Input<C> g, x;
  const double *mean, *rstd;
  std::int64_t n;
  bool packs;
  template <int kCount>
  struct Read {
    C g[kCount], x[kCount];
  };
  template <int kCount>
  __device__ __forceinline__ Read<kCount> read(std::int64_t row, std::int64_t column) const {
    Read<kCount> result;
    g.read(row * n + column, result.g);
    x.read(row * n + column, result.x);
    return result;
  }
  template <int kCount>
  __device__ __forceinline__ void add(const Read<kCount>& read, std::int64_t row, std::int64_t,
                                      C (&sums)[2][kCount]) const {
    const Centre<C> centre(mean[row], rstd[row]);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      sums[0][j] = math::fma(read.g[j], centre(read.x[j]), sums[0][j]);
      sums[1][j] += read.g[j];
    }
  }
};

}  // namespace

void layer_norm_backward_add(Workspace& workspace, const TensorRef& g, const TensorRef& x, const TensorRef& weight,
                             const TensorRef& mean, const TensorRef& rstd, const TensorRef& add, const TensorRef& dx,
                             const TensorRef& dweight, const TensorRef& dbias) {
  const std::int64_t rows = x.sizes[0], n = x.sizes[1];
  if (n == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const bool parameters = dweight.present() || dbias.present();
    const ColumnOutputs<C, 2> outputs{{Output<C>(dweight), Output<C>(dbias)}};
    Backward<C> b{row_shape<C>(rows, n, g, x, weight, add, dx),
                  0,
                  Input<C>(g),
                  Input<C>(x),
                  Input<C>(weight),
                  Input<C>(add),
                  mean.as<double>(),
                  rstd.as<double>(),
                  Output<C>(dx),
                  nullptr};
    dispatch_rows<C>(n, [&](auto group) {
      using G = decltype(group);
      constexpr std::int64_t kBlocks = 1024;  // at most
      const std::int64_t least = 4 * G::kGroups, share = ceil_div(rows, kBlocks);
      b.rows_per_block = share > least ? share : least;
      const std::int64_t blocks = ceil_div(rows, b.rows_per_block);
      if (parameters && G::kCached) b.partial = workspace.allocate<double>(blocks * 2 * n);
      if (b.partial != nullptr || dx.present()) {
        launch("layer_norm_backward", {.x = blocks}, kRowThreads, 0, backward_kernel<G>, b);
      }
      if (b.partial != nullptr) {
        add_slices("layer_norm_backward", b.partial, blocks, n, 1, outputs);
      } else if (parameters) {
        sum_columns("layer_norm_backward", workspace, ParameterTerms<C>{b.g, b.x, b.mean, b.rstd, n, b.shape.packs},
                    rows, n, 1, outputs);
      }
    });
  });
}

namespace {

void layer_norm_backward(Workspace& workspace, const TensorRef& g, const TensorRef& x, const TensorRef& weight,
                         const TensorRef& mean, const TensorRef& rstd, const TensorRef& dx, const TensorRef& dweight,
                         const TensorRef& dbias) {
  layer_norm_backward_add(workspace, g, x, weight, mean, rstd, {}, dx, dweight, dbias);
}

// --- again, from the statistics --------------------------------------------------------------------------------------

template <class C>
__global__ void again_kernel(std::int64_t rows, Divisor columns, bool packs, Input<C> x, Input<C> weight, Input<C> bias,
                             const double* mean, const double* rstd, Output<C> y) {
  constexpr int kCount = kPackOf<C>;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) * (packs ? kCount : 1);
  if (first >= rows * columns.value) return;
  std::int64_t column;
  const std::int64_t row = columns.split(first, &column);
  const Centre<C> centre(mean[row], rstd[row]);
  if (!packs) {
    y.write(first, math::fma(centre(x[first]), weight[column], bias[column]));
    return;
  }
  C value[kCount], scale[kCount], shift[kCount];
  x.read(first, value);
  weight.read(column, scale);
  bias.read(column, shift);
#pragma unroll
  for (int j = 0; j < kCount; ++j) value[j] = math::fma(centre(value[j]), scale[j], shift[j]);
  y.write(first, value);
}

}  // namespace

void layer_norm_again(const TensorRef& x, const TensorRef& weight, const TensorRef& bias, const TensorRef& mean,
                      const TensorRef& rstd, const TensorRef& y) {
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const RowShape shape = row_shape<C>(x.sizes[0], x.sizes[1], x, weight, bias, y);
    const std::int64_t threads = shape.rows * shape.n / (shape.packs ? kPackOf<C> : 1);
    launch("layer_norm", {.x = ceil_div(threads, kRowThreads)}, kRowThreads, 0, again_kernel<C>, shape.rows,
           Divisor(shape.n), shape.packs, Input<C>(x), Input<C>(weight), Input<C>(bias), mean.as<const double>(),
           rstd.as<const double>(), Output<C>(y));
  });
}

namespace {

constexpr NormKernels kKernels = {layer_norm, layer_norm_backward};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const NormKernels& cuda_norm_kernels() { return cuda::kKernels; }

}  // namespace polygrad
