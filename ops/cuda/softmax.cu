// Softmax on a GPU: a row is read once, by a warp or a block; along an inner dimension a thread takes a column.
#include "ops/kernels/softmax.h"

#include "engine/math.h"
#include "ops/cuda/rows.h"

namespace polygrad::cuda {
namespace {

enum class Map { softmax, log_softmax };

template <Map kMap, class G, class C = typename G::C>
__global__ void __launch_bounds__(kRowThreads, 2) forward_kernel(RowShape shape, Input<C> x, Output<C> y) {
  using S = typename G::S;
  const std::int64_t index = group_index<G>(), first = index * shape.n;
  if (index >= shape.rows) return;
  const Row<G> row(shape, x, first);
  C largest = -math::from_bits(0x7f800000u);
  row.each([&](int, int, std::int64_t, C value) { largest = Largest()(largest, value); });
  largest = group_reduce<G::kThreads>(largest, Largest());
  S sum = 0;
  row.each([&](int, int, std::int64_t, C value) { sum += static_cast<S>(math::exp(value - largest)); });
  const double total = static_cast<double>(group_sum<G::kThreads>(sum));
  const C scale = static_cast<C>(1.0 / total), log_sum = static_cast<C>(math::log(total));
  each_pack<G>(shape, [&](int slot, std::int64_t pack) {
    C value[G::kCount];
    row.get(slot, pack, value);
#pragma unroll
    for (int j = 0; j < G::kCount; ++j) {
      value[j] = kMap == Map::softmax ? math::exp(value[j] - largest) * scale : (value[j] - largest) - log_sum;
    }
    write_pack(shape, y, first, pack, value);
  });
}

// dx = g - e^y·Σg, in f64, where a sure prediction cancels its target.
template <class C>
POLYGRAD_INLINE C log_softmax_gradient(C g, C y, double total) {
  return static_cast<C>(static_cast<double>(g) - math::exp(static_cast<double>(y)) * total);
}

template <Map kMap, class G, class C = typename G::C>
__global__ void __launch_bounds__(kRowThreads, 2)
    backward_kernel(RowShape shape, Input<C> g, Input<C> y, Output<C> dx) {
  using S = typename G::S;
  const std::int64_t index = group_index<G>(), first = index * shape.n;
  if (index >= shape.rows) return;
  const Row<G> upstream(shape, g, first), result(shape, y, first);
  S sum = 0;
  each_pack<G>(shape, [&](int slot, std::int64_t pack) {
    C a[G::kCount], b[G::kCount];
    upstream.get(slot, pack, a);
    result.get(slot, pack, b);
#pragma unroll
    for (int j = 0; j < G::kCount; ++j) {  // beyond the row's end both are 0
      sum += kMap == Map::softmax ? static_cast<S>(a[j]) * static_cast<S>(b[j]) : static_cast<S>(a[j]);
    }
  });
  const double total = static_cast<double>(group_sum<G::kThreads>(sum));
  const C mean = static_cast<C>(total);
  each_pack<G>(shape, [&](int slot, std::int64_t pack) {
    C a[G::kCount], b[G::kCount];
    upstream.get(slot, pack, a);
    result.get(slot, pack, b);
#pragma unroll
    for (int j = 0; j < G::kCount; ++j) {
      a[j] = kMap == Map::softmax ? b[j] * (a[j] - mean) : log_softmax_gradient(a[j], b[j], total);
    }
    write_pack(shape, dx, first, pack, a);
  });
}

// --- along an inner dimension: (outer, n, inner) ---------------------------------------------------------------------

struct Columns {
  std::int64_t outer, n, inner;
  POLYGRAD_INLINE std::int64_t first(std::int64_t column) const { return column / inner * n * inner + column % inner; }
};

template <Map kMap, class C>
__global__ void forward_columns_kernel(Columns shape, Input<C> x, Output<C> y) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (column >= shape.outer * shape.inner) return;
  const std::int64_t first = shape.first(column);
  C largest = x[first];
  for (std::int64_t i = 1; i < shape.n; ++i) largest = Largest()(largest, x[first + i * shape.inner]);
  double total = 0;
  for (std::int64_t i = 0; i < shape.n; ++i) {
    total += static_cast<double>(math::exp(x[first + i * shape.inner] - largest));
  }
  const C scale = static_cast<C>(1.0 / total), log_sum = static_cast<C>(math::log(total));
  for (std::int64_t i = 0; i < shape.n; ++i) {
    const C value = x[first + i * shape.inner] - largest;
    y.write(first + i * shape.inner, kMap == Map::softmax ? math::exp(value) * scale : value - log_sum);
  }
}

template <Map kMap, class C>
__global__ void backward_columns_kernel(Columns shape, Input<C> g, Input<C> y, Output<C> dx) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (column >= shape.outer * shape.inner) return;
  const std::int64_t first = shape.first(column);
  double total = 0;
  for (std::int64_t i = 0; i < shape.n; ++i) {
    const double upstream = static_cast<double>(g[first + i * shape.inner]);
    total += kMap == Map::softmax ? upstream * static_cast<double>(y[first + i * shape.inner]) : upstream;
  }
  const C mean = static_cast<C>(total);
  for (std::int64_t i = 0; i < shape.n; ++i) {
    const C a = g[first + i * shape.inner], b = y[first + i * shape.inner];
    dx.write(first + i * shape.inner, kMap == Map::softmax ? b * (a - mean) : log_softmax_gradient(a, b, total));
  }
}

// --- the table ------------------------------------------------------------------------------------------------------

template <Map kMap>
void forward(Workspace&, const TensorRef& x, const TensorRef& y) {
  const char* name = kMap == Map::softmax ? "softmax" : "log_softmax";
  if (x.numel() == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    if (x.sizes[2] == 1) {
      const RowShape shape = row_shape<C>(x.sizes[0], x.sizes[1], x, y);
      dispatch_rows<C>(shape.n, [&](auto group) {
        using G = decltype(group);
        launch(name, {.x = ceil_div(shape.rows, G::kGroups)}, kRowThreads, 0, forward_kernel<kMap, G>, shape,
               Input<C>(x), Output<C>(y));
      });
    } else {
      const Columns shape{x.sizes[0], x.sizes[1], x.sizes[2]};
      launch(name, {.x = ceil_div(shape.outer * shape.inner, kRowThreads)}, kRowThreads, 0,
             forward_columns_kernel<kMap, C>, shape, Input<C>(x), Output<C>(y));
    }
  });
}

template <Map kMap>
void backward(Workspace&, const TensorRef& g, const TensorRef& y, const TensorRef& dx) {
  const char* name = kMap == Map::softmax ? "softmax_backward" : "log_softmax_backward";
  if (g.numel() == 0) return;
  dispatch_compute(g.dtype, [&](auto tag) {
    using C = decltype(tag);
    if (g.sizes[2] == 1) {
      const RowShape shape = row_shape<C>(g.sizes[0], g.sizes[1], g, y, dx);
      dispatch_rows<C>(shape.n, [&](auto group) {
        using G = decltype(group);
        launch(name, {.x = ceil_div(shape.rows, G::kGroups)}, kRowThreads, 0, backward_kernel<kMap, G>, shape,
               Input<C>(g), Input<C>(y), Output<C>(dx));
      });
    } else {
      const Columns shape{g.sizes[0], g.sizes[1], g.sizes[2]};
      launch(name, {.x = ceil_div(shape.outer * shape.inner, kRowThreads)}, kRowThreads, 0,
             backward_columns_kernel<kMap, C>, shape, Input<C>(g), Input<C>(y), Output<C>(dx));
    }
  });
}

constexpr SoftmaxKernels kKernels = {forward<Map::softmax>, backward<Map::softmax>, forward<Map::log_softmax>,
                                     backward<Map::log_softmax>};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const SoftmaxKernels& cuda_softmax_kernels() { return cuda::kKernels; }

}  // namespace polygrad
