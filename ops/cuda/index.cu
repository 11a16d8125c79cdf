// The index family on a GPU. Reads move bytes; gradients are sums per destination row, in the order of positions: the
// positions are sorted by id first (a stable counting sort), so that no two threads add to one place.
//
// Ids are checked without waiting: a kernel notes the first that is outside its range (Context::fault), the next call
// that waits throws. Until then such an id reads zeros and adds nothing.
#include "ops/kernels/index.h"

#include <cstring>
#include <limits>

#include "engine/backend/cuda/walk.h"
#include "engine/error.h"
#include "ops/cuda/columns.h"

namespace polygrad::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
Grid grid_for(std::int64_t threads) { return {.x = ceil_div(threads, kThreads)}; }

// --- the check -------------------------------------------------------------------------------------------------------

__global__ void check_kernel(const std::int64_t* ids, std::int64_t n, std::int64_t size, bool allows,
                             std::int64_t allowed, Fault* fault) {
  const std::int64_t i = global_thread();
  if (i >= n) return;
  const std::int64_t id = ids[i];
  if ((id >= 0 && id < size) || (allows && id == allowed)) return;
  atomicMin(&fault->position, static_cast<long long>(i));
  fault->bound = size;
}

std::int64_t first_outside(Workspace&, const TensorRef& ids, std::int64_t size, const std::int64_t* allowed) {
  const std::int64_t n = ids.numel();
  launch("check_indices", grid_for(n), kThreads, 0, check_kernel, ids.as<const std::int64_t>(), n, size,
         allowed != nullptr, allowed != nullptr ? *allowed : 0, context().fault());
  return -1;
}

// --- reading ---------------------------------------------------------------------------------------------------------

template <class T>
__global__ void gather_kernel(const T* x, const std::int64_t* index, std::int64_t count, Divisor inner, Divisor n,
                              std::int64_t size, T* y) {
  const std::int64_t i = global_thread();
  if (i >= count) return;
  std::int64_t j, rest;
  const std::int64_t outer = n.split(inner.split(i, &j), &rest), id = index[i];
  y[i] = id >= 0 && id < size ? x[(outer * size + id) * inner.value + j] : T{};
}

void gather(Workspace&, const TensorRef& x, const TensorRef& index, const TensorRef& y) {
  const std::int64_t count = y.numel();
  if (count == 0) return;
  dispatch_size(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch("gather", grid_for(count), kThreads, 0, gather_kernel<T>, x.as<const T>(), index.as<const std::int64_t>(),
           count, Divisor(y.sizes[2]), Divisor(y.sizes[1]), x.sizes[1], y.as<T>());
  });
}

// T: a unit that rows consist of, an element or 16 bytes; inner counts units.
template <class T>
__global__ void select_rows_kernel(const T* x, const std::int64_t* ids, std::int64_t count, Divisor inner, Divisor n,
                                   std::int64_t size, T* y) {
  const std::int64_t i = global_thread();
  if (i >= count) return;
  std::int64_t j, position;
  const std::int64_t outer = n.split(inner.split(i, &j), &position), id = ids[position];
  y[i] = id >= 0 && id < size ? x[(outer * size + id) * inner.value + j] : T{};
}

template <class T>
void select_units(const TensorRef& x, const TensorRef& ids, std::int64_t inner, const TensorRef& y) {
  const std::int64_t count = y.sizes[0] * y.sizes[1] * inner;
  launch("select_rows", grid_for(count), kThreads, 0, select_rows_kernel<T>, x.as<const T>(),
         ids.as<const std::int64_t>(), count, Divisor(inner), Divisor(y.sizes[1]), x.sizes[1], y.as<T>());
}

void select_rows(Workspace&, const TensorRef& x, const TensorRef& ids, const TensorRef& y) {
  if (y.numel() == 0) return;
  const std::int64_t bytes = y.sizes[2] * static_cast<std::int64_t>(dtype_size(y.dtype));
  if (bytes % 16 == 0 && aligned(x.data, y.data)) {
    return select_units<Pack<std::uint64_t, 2>>(x, ids, bytes / 16, y);
  }
  dispatch_size(x.dtype, [&](auto tag) { select_units<decltype(tag)>(x, ids, y.sizes[2], y); });
}

// --- the gradient of gather ------------------------------------------------------------------------------------------

// A thread owns a column (o, :, j): nobody else adds to it. sums is laid out as gx.
template <class C>
__global__ void gather_backward_kernel(Input<C> gy, const std::int64_t* index, std::int64_t outer, std::int64_t n,
                                       Divisor inner, std::int64_t size, double* sums, Output<C> gx) {
  const std::int64_t column = global_thread();
  if (column >= outer * inner.value) return;
  std::int64_t j;
  const std::int64_t o = inner.split(column, &j), first = o * size * inner.value + j, from = o * n * inner.value + j;
  for (std::int64_t r = 0; r < size; ++r) sums[first + r * inner.value] = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t id = index[from + i * inner.value];
    if (id >= 0 && id < size) sums[first + id * inner.value] += static_cast<double>(gy[from + i * inner.value]);
  }
  for (std::int64_t r = 0; r < size; ++r) {
    gx.write(first + r * inner.value, static_cast<C>(sums[first + r * inner.value]));
  }
}

void gather_backward(Workspace& workspace, const TensorRef& gy, const TensorRef& index, const TensorRef& gx) {
  const std::int64_t outer = gx.sizes[0], inner = gx.sizes[2];
  if (gx.numel() == 0) return;
  double* sums = workspace.allocate<double>(gx.numel());
  dispatch_compute(gx.dtype, [&](auto tag) {
    using C = decltype(tag);
    launch("gather_backward", grid_for(outer * inner), kThreads, 0, gather_backward_kernel<C>, Input<C>(gy),
           index.as<const std::int64_t>(), outer, gy.sizes[1], Divisor(inner), gx.sizes[1], sums, Output<C>(gx));
  });
}

// --- positions sorted by id ------------------------------------------------------------------------------------------

// The positions are cut into chunks, each of which a warp walks through in order, 32 at a time. counters[id][chunk] is
// first how often the chunk holds the id, then (after a prefix sum over all) where its positions go, and at last, moved
// on by each, where the next ones begin: positions of id r end at counters[r][chunks - 1].
struct Sorted {
  std::int32_t* counters;
  std::int32_t* positions;
  std::int64_t n, size, chunks, chunk;  // chunk: its length
};

// The lanes that hold the same valid id as this one.
__device__ __forceinline__ unsigned peers_of(std::int64_t id, bool valid) {
  const unsigned same = __match_any_sync(kAllLanes, static_cast<unsigned long long>(id));
  return valid ? same : 0u;
}

template <bool kPlace>
__global__ void walk_chunks_kernel(Sorted sorted, const std::int64_t* ids) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (chunk >= sorted.chunks) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t begin = chunk * sorted.chunk;
  const std::int64_t end = begin + sorted.chunk < sorted.n ? begin + sorted.chunk : sorted.n;
  for (std::int64_t first = begin; first < end; first += kWarp) {
    const std::int64_t position = first + lane, id = position < end ? ids[position] : -1;
    const bool valid = id >= 0 && id < sorted.size;
    const unsigned peers = peers_of(id, valid), below = peers & ((1u << lane) - 1u);
    std::int32_t* counter = sorted.counters + (valid ? id * sorted.chunks + chunk : 0);
    const std::int32_t start = valid ? *counter : 0;
    __syncwarp();  // all have read the counter
    if (kPlace && valid) sorted.positions[start + __popc(below)] = static_cast<std::int32_t>(position);
    if (valid && below == 0) *counter = start + __popc(peers);
    __syncwarp();
  }
}

// Prefix sums, exclusive, in three steps: the sum of each tile; the tiles' sums, by one block; each tile again.
constexpr int kTile = 4 * kThreads;

// The block's threads hold four numbers each; gives the sum of all before this thread's, and in *total that of all.
__device__ __forceinline__ std::int32_t prefix_in_block(std::int32_t own, std::int32_t* total) {
  __shared__ std::int32_t warps[kThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  std::int32_t sum = own;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const std::int32_t other = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();
  if (lane == kWarp - 1) warps[warp] = sum;
  __syncthreads();
  std::int32_t before = sum - own;
  *total = 0;
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) {
    if (i < warp) before += warps[i];
    *total += warps[i];
  }
  return before;
}

__global__ void tile_sums_kernel(const std::int32_t* values, std::int64_t count, std::int32_t* sums) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile + threadIdx.x * 4;
  std::int32_t own = 0, total;
#pragma unroll
  for (int i = 0; i < 4; ++i) own += first + i < count ? values[first + i] : 0;
  prefix_in_block(own, &total);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void scan_sums_kernel(std::int32_t* sums, std::int64_t count) {
  std::int32_t carry = 0;
  for (std::int64_t first = 0; first < count; first += kThreads) {
    const std::int64_t i = first + threadIdx.x;
    std::int32_t total;
    const std::int32_t before = prefix_in_block(i < count ? sums[i] : 0, &total);
    if (i < count) sums[i] = carry + before;
    carry += total;
  }
}

__global__ void scan_tiles_kernel(std::int32_t* values, std::int64_t count, const std::int32_t* sums) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTile + threadIdx.x * 4;
  std::int32_t own[4], sum = 0, total;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    own[i] = first + i < count ? values[first + i] : 0;
    sum += own[i];
  }
  std::int32_t before = prefix_in_block(sum, &total) + sums[blockIdx.x];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < count) values[first + i] = before;
    before += own[i];
  }
}

Sorted sort_positions(Workspace& workspace, const TensorRef& ids, std::int64_t size) {
  const std::int64_t n = ids.numel(), limit = std::numeric_limits<std::int32_t>::max();
  // Short chunks are more warps at once, but each has a counter an id.
  std::int64_t chunks = 4 * n / size;
  const std::int64_t most = ceil_div(n, 256);
  if (chunks > most) chunks = most;
  if (chunks < 1) chunks = 1;
  Sorted sorted{nullptr, nullptr, n, size, chunks, ceil_div(n, chunks)};
  const std::int64_t count = size * chunks, tiles = ceil_div(count, kTile);
  if (n > limit || count > limit) throw InternalError("[select_rows_backward] more than 2^31 ids");
  sorted.counters = workspace.allocate<std::int32_t>(count);
  sorted.positions = workspace.allocate<std::int32_t>(n);
  std::int32_t* sums = workspace.allocate<std::int32_t>(tiles);
  check(cudaMemsetAsync(sorted.counters, 0, static_cast<std::size_t>(count) * sizeof(std::int32_t),
                        context().stream().handle),
        "cudaMemsetAsync");
  const Grid warps{.x = ceil_div(chunks, kThreads / kWarp)};
  const auto* id = ids.as<const std::int64_t>();
  launch("sort_positions", warps, kThreads, 0, walk_chunks_kernel<false>, sorted, id);
  launch("sort_positions", {.x = tiles}, kThreads, 0, tile_sums_kernel, sorted.counters, count, sums);
  launch("sort_positions", {}, kThreads, 0, scan_sums_kernel, sums, tiles);
  launch("sort_positions", {.x = tiles}, kThreads, 0, scan_tiles_kernel, sorted.counters, count, sums);
  launch("sort_positions", warps, kThreads, 0, walk_chunks_kernel<true>, sorted, id);
  return sorted;
}

// A block sums 32 columns of one destination row, eight positions at a time.
template <class C>
__global__ void select_rows_backward_kernel(Sorted sorted, Input<C> gy, std::int64_t inner, std::int64_t tiles,
                                            std::int64_t skipped, Output<C> gx) {
  const std::int64_t row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const std::int64_t o = row / sorted.size, r = row % sorted.size, column = tile * kWarp + threadIdx.x % kWarp;
  const std::int64_t begin = r == 0 ? 0 : sorted.counters[r * sorted.chunks - 1];
  const std::int64_t end = r == skipped ? begin : sorted.counters[(r + 1) * sorted.chunks - 1];
  double sum = 0;
  if (column < inner) {
    for (std::int64_t k = begin + threadIdx.x / kWarp; k < end; k += kColumnRows) {
      sum += static_cast<double>(gy[(o * sorted.n + sorted.positions[k]) * inner + column]);
    }
  }
  const double total = sum_over_warps(sum);
  if (threadIdx.x < kWarp && column < inner) gx.write(row * inner + column, static_cast<C>(total));
}

void select_rows_backward(Workspace& workspace, const TensorRef& gy, const TensorRef& ids, std::int64_t skipped,
                          const TensorRef& gx) {
  const std::int64_t outer = gx.sizes[0], size = gx.sizes[1], inner = gx.sizes[2];
  if (gx.numel() == 0) return;
  const Sorted sorted = sort_positions(workspace, ids, size);
  const std::int64_t tiles = ceil_div(inner, kWarp);
  dispatch_compute(gx.dtype, [&](auto tag) {
    using C = decltype(tag);
    launch("select_rows_backward", {.x = outer * size * tiles}, kColumnThreads, 0, select_rows_backward_kernel<C>,
           sorted, Input<C>(gy), inner, tiles, skipped, Output<C>(gx));
  });
}

// --- one_hot, masked_fill --------------------------------------------------------------------------------------------

// The bits of 1 in each dtype.
std::uint64_t one_bits(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0x3F800000u;
    case DType::f64:
      return 0x3FF0000000000000u;
    case DType::bf16:
      return 0x3F80u;
    case DType::f16:
      return 0x3C00u;
    default:
      return 1;
  }
}

template <class T>
__global__ void one_hot_kernel(const std::int64_t* ids, std::int64_t count, Divisor classes, T one, T* y) {
  const std::int64_t i = global_thread();
  if (i >= count) return;
  std::int64_t k;
  const std::int64_t row = classes.split(i, &k);
  y[i] = ids[row] == k ? one : T{};
}

void one_hot(Workspace&, const TensorRef& ids, const TensorRef& y) {
  const std::int64_t count = y.numel();
  if (count == 0) return;
  dispatch_size(y.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch("one_hot", grid_for(count), kThreads, 0, one_hot_kernel<T>, ids.as<const std::int64_t>(), count,
           Divisor(y.sizes[1]), static_cast<T>(one_bits(y.dtype)), y.as<T>());
  });
}

template <class T>
__global__ void masked_fill_kernel(const T* x, const bool* mask, std::int64_t count, T value, T* y) {
  const std::int64_t i = global_thread();
  if (i < count) y[i] = mask[i] ? value : x[i];
}

void masked_fill(Workspace&, const TensorRef& x, const TensorRef& mask, const void* value, const TensorRef& y) {
  dispatch_size(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    T fill;
    std::memcpy(&fill, value, sizeof fill);
    launch("masked_fill", grid_for(x.numel()), kThreads, 0, masked_fill_kernel<T>, x.as<const T>(),
           mask.as<const bool>(), x.numel(), fill, y.as<T>());
  });
}

constexpr IndexKernels kKernels = {
    .first_outside = first_outside,
    .gather = gather,
    .gather_backward = gather_backward,
    .select_rows = select_rows,
    .select_rows_backward = select_rows_backward,
    .one_hot = one_hot,
    .masked_fill = masked_fill,
};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const IndexKernels& cuda_index_kernels() { return cuda::kKernels; }

}  // namespace polygrad
