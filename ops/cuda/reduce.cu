// Reductions on a GPU. A sum is formed in f64, in an order that depends on the shape alone.
#include "ops/kernels/reduce.h"

#include "engine/backend/cuda/walk.h"
#include "ops/cuda/columns.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256;

// --- sums -----------------------------------------------------------------------------------------------------------

// A contiguous tensor as kept and reduced dimensions.
struct Plan {
  Walk<1> kept, reduced;
  bool inner_kept = false;
  Plan(const TensorRef& x, std::uint32_t mask) {
    for (std::int32_t i = 0; i < x.dim; ++i) {
      if (x.sizes[i] != 1) inner_kept = ((mask >> i) & 1) == 0;
      ((mask >> i) & 1 ? reduced : kept).append(x.sizes[i], {x.strides[i]});
    }
  }
};

template <class C_>
struct Terms {
  using C = C_;
  Input<C> x;
  Walk<1> kept, reduced;
  bool packs;  // down columns
  Terms(const TensorRef& ref, const Plan& plan)
      : x(ref), kept(plan.kept), reduced(plan.reduced), packs(plan.inner_kept && aligned(ref.data)) {
    const int last = kept.dim - 1;
    packs = packs && last >= 0 && kept.sizes[last].value % kPackOf<C> == 0 && kept.strides[0][last] == 1;
    for (int i = 0; i < last; ++i) packs = packs && kept.strides[0][i] % kPackOf<C> == 0;
    for (int i = 0; i < reduced.dim; ++i) packs = packs && reduced.strides[0][i] % kPackOf<C> == 0;
  }
  __device__ __forceinline__ std::int64_t place(std::int64_t r, std::int64_t output) const {
    std::int64_t from[1], at[1];
    kept.offsets(output, from);
    reduced.offsets(r, at);
    return from[0] + at[0];
  }
  template <int kCount>
  struct Read {
    C x[kCount];
  };
  template <int kCount>
  __device__ __forceinline__ Read<kCount> read(std::int64_t r, std::int64_t output) const {
    Read<kCount> result;
    x.read(place(r, output), result.x);
    return result;
  }
  template <int kCount>
  __device__ __forceinline__ void add(const Read<kCount>& read, std::int64_t, std::int64_t,
                                      C (&sums)[1][kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[0][j] += read.x[j];
  }
};

// A group of kGroup threads sums one output's terms of a slice: partial[slice][output].
template <int kGroup, class C>
__global__ void runs_kernel(Terms<C> terms, std::int64_t step, double* partial) {
  constexpr int kGroups = kThreads / kGroup;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * kGroups + static_cast<int>(threadIdx.x) / kGroup;
  if (output >= terms.kept.count) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * step;
  const std::int64_t end = begin + step < terms.reduced.count ? begin + step : terms.reduced.count;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t r = begin + static_cast<int>(threadIdx.x) % kGroup; r < end; r += kGroup) {
    sum += static_cast<double>(terms.x[terms.place(r, output)]);
  }
  sum = group_sum<kGroup>(sum);
  if (threadIdx.x % kGroup == 0) {
    partial[static_cast<std::int64_t>(blockIdx.y) * terms.kept.count + output] = sum;
  }
}

template <class C>
void sum_runs(Workspace& workspace, const Terms<C>& terms, double scale, const ColumnOutputs<C, 1>& out) {
  constexpr std::int64_t kShort = 1024, kBlocks = 512;  // a run for a warp; blocks that fill a GPU
  const std::int64_t outputs = terms.kept.count, length = terms.reduced.count;
  std::int64_t slices = 1;
  if (length > kShort && outputs < kBlocks) {
    slices = ceil_div(length, 4 * kThreads);
    if (slices > ceil_div(kBlocks, outputs)) slices = ceil_div(kBlocks, outputs);
  }
  double* partial = workspace.allocate<double>(slices * outputs);
  const std::int64_t step = ceil_div(length, slices);
  if (length <= kShort) {
    launch("sum", {.x = ceil_div(outputs, kThreads / kWarp), .y = slices}, kThreads, 0, runs_kernel<kWarp, C>, terms,
           step, partial);
  } else {
    launch("sum", {.x = outputs, .y = slices}, kThreads, 0, runs_kernel<kThreads, C>, terms, step, partial);
  }
  add_slices("sum", partial, slices, outputs, scale, out);
}

void sum(Workspace& workspace, const TensorRef& x, std::uint32_t reduced, double scale, const TensorRef& out) {
  if (out.numel() == 0) return;
  const Plan plan(x, reduced);
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Terms<C> terms(x, plan);
    const ColumnOutputs<C, 1> output{{Output<C>(out)}};
    if (plan.inner_kept) {
      sum_columns("sum", workspace, terms, plan.reduced.count, plan.kept.count, scale, output);
    } else {
      sum_runs(workspace, terms, scale, output);
    }
  });
}

// --- largest --------------------------------------------------------------------------------------------------------

// x (outer, n, inner): a warp looks through the n numbers of one (outer, inner) place.
struct Slabs {
  std::int64_t outer, n, inner;
  explicit Slabs(const TensorRef& x) : outer(x.sizes[0]), n(x.sizes[1]), inner(x.sizes[2]) {}
  POLYGRAD_INLINE std::int64_t first(std::int64_t place) const { return place / inner * n * inner + place % inner; }
  Grid grid() const { return {.x = ceil_div(outer * inner, kThreads / kWarp)}; }
};

__device__ __forceinline__ std::int64_t warp_index() {
  return static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
}
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }

template <class C>
struct Candidate {
  C value;
  std::int64_t index;  // -1: none
};
// Whether a comes before b in descending order; a NaN before all numbers; of equals the first.
template <class C>
POLYGRAD_INLINE bool before(const Candidate<C>& a, const Candidate<C>& b) {
  if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  if (a.value > b.value || (nan_a && !nan_b)) return true;
  if (b.value > a.value || (nan_b && !nan_a)) return false;
  return a.index < b.index;
}
template <class C>
__device__ Candidate<C> warp_first(Candidate<C> best) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Candidate<C> other{
        __shfl_xor_sync(kAllLanes, best.value, distance),
        static_cast<std::int64_t>(__shfl_xor_sync(kAllLanes, static_cast<long long>(best.index), distance))};
    if (before(other, best)) best = other;
  }
  return best;
}

template <class C>
__global__ void amax_kernel(Slabs shape, Input<C> x, Output<C> out, std::int64_t* indices) {
  const std::int64_t place = warp_index();
  if (place >= shape.outer * shape.inner) return;
  const std::int64_t first = shape.first(place);
  Candidate<C> best{C(0), -1};
  for (std::int64_t i = lane_index(); i < shape.n; i += kWarp) {
    const Candidate<C> next{x[first + i * shape.inner], i};
    if (before(next, best)) best = next;
  }
  best = warp_first(best);
  if (lane_index() != 0) return;
  if (indices != nullptr) {
    indices[place] = best.index;
  } else {
    out.write(place, best.value);
  }
}

void amax(Workspace&, const TensorRef& x, const TensorRef& out) {
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Slabs shape(x);
    launch("amax", shape.grid(), kThreads, 0, amax_kernel<C>, shape, Input<C>(x), Output<C>(out),
           static_cast<std::int64_t*>(nullptr));
  });
}

void argmax(Workspace&, const TensorRef& x, const TensorRef& indices) {
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Slabs shape(x);
    launch("argmax", shape.grid(), kThreads, 0, amax_kernel<C>, shape, Input<C>(x), Output<C>(),
           indices.as<std::int64_t>());
  });
}

template <class C>
__global__ void amax_backward_kernel(Slabs shape, Input<C> g, Input<C> x, Input<C> y, Output<C> dx) {
  const std::int64_t place = warp_index();
  if (place >= shape.outer * shape.inner) return;
  const std::int64_t first = shape.first(place);
  const C largest = y[place];
  int equals = 0;
  for (std::int64_t i = lane_index(); i < shape.n; i += kWarp) equals += x[first + i * shape.inner] == largest;
  equals = warp_sum(equals);
  // Where the largest is NaN nothing equals it, and all that are NaN get NaN.
  const C share = equals > 0 ? g[place] / static_cast<C>(equals) : largest;
  for (std::int64_t i = lane_index(); i < shape.n; i += kWarp) {
    const C value = x[first + i * shape.inner];
    dx.write(first + i * shape.inner, value == largest || value != value ? share : C(0));
  }
}

void amax_backward(Workspace&, const TensorRef& g, const TensorRef& x, const TensorRef& y, const TensorRef& dx) {
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    const Slabs shape(x);
    launch("amax_backward", shape.grid(), kThreads, 0, amax_backward_kernel<C>, shape, Input<C>(g), Input<C>(x),
           Input<C>(y), Output<C>(dx));
  });
}

// --- topk -----------------------------------------------------------------------------------------------------------

// A warp finds the k numbers of a row one after another: k passes, each for the first that comes after the last found.
template <class C>
__global__ void topk_kernel(std::int64_t rows, std::int64_t n, std::int64_t k, Input<C> x, Output<C> values,
                            std::int64_t* indices) {
  const std::int64_t row = warp_index();
  if (row >= rows) return;
  Candidate<C> last{C(0), -1};
  for (std::int64_t rank = 0; rank < k; ++rank) {
    Candidate<C> best{C(0), -1};
    for (std::int64_t i = lane_index(); i < n; i += kWarp) {
      const Candidate<C> next{x[row * n + i], i};
      if ((rank == 0 || before(last, next)) && before(next, best)) best = next;
    }
    last = warp_first(best);
    if (lane_index() == 0) {
      values.write(row * k + rank, last.value);
      indices[row * k + rank] = last.index;
    }
  }
}

void topk(Workspace&, const TensorRef& x, const TensorRef& values, const TensorRef& indices) {
  const std::int64_t rows = x.sizes[0], n = x.sizes[1], k = values.sizes[1];
  if (k == 0) return;
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    launch("topk", {.x = ceil_div(rows, kThreads / kWarp)}, kThreads, 0, topk_kernel<C>, rows, n, k, Input<C>(x),
           Output<C>(values), indices.as<std::int64_t>());
  });
}

constexpr ReduceKernels kKernels = {sum, amax, amax_backward, argmax, topk};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const ReduceKernels& cuda_reduce_kernels() { return cuda::kKernels; }

}  // namespace polygrad
