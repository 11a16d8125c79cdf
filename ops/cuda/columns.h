// Sums down the columns of a matrix of terms, which need not lie in memory: each is formed where it is added.
//
// Where this stands: used by reduce.cu, norm.cu, matmul.cu. The rows are cut into slices whose number depends on the
// shape alone. A block sums a pack of columns a lane, eight rows at a time, one a warp; a thread reads four of its rows
// before it uses them, so that enough is under way. Four terms are added in their own type, the rest in f64; the slices
// are added in order.
//
// Terms is a small struct:
//     using C;                                          // what terms are formed in
//     bool packs;                                       // whether packs of columns can be read
//     template <int kCount> struct Read;                // what is read of a pack
//     template <int kCount> Read<kCount> read(row, column) const;
//     template <int kCount> void add(const Read<kCount>&, row, column, C (&sums)[kSums][kCount]) const;
#pragma once

#include <type_traits>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/workspace.h"

namespace polygrad::cuda {

inline constexpr int kColumnThreads = 256, kColumnRows = kColumnThreads / kWarp;

template <class C, int kSums>
struct ColumnOutputs {
  Output<C> at[kSums];  // each may be absent
};

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

// The sum over the block's eight warps of each lane's number; complete in warp 0.
__device__ __forceinline__ double sum_over_warps(double value) {
  __shared__ double parts[kColumnThreads];
  __syncthreads();
  parts[threadIdx.x] = value;
  __syncthreads();
  double total = parts[threadIdx.x % kWarp];
#pragma unroll
  for (int i = 1; i < kColumnRows; ++i) total += parts[i * kWarp + static_cast<int>(threadIdx.x) % kWarp];
  return total;
}

// partial[slice][k][column] = Σ over the slice's rows of terms(row, column)[k]
template <int kSums, int kCount, class Terms>
__global__ void columns_kernel(Terms terms, std::int64_t rows, std::int64_t step, std::int64_t columns,
                               double* partial) {
  using C = typename Terms::C;
  constexpr int kAtOnce = 4;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp) * kCount;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * step,
                     end = begin + step < rows ? begin + step : rows;
  double sums[kSums][kCount] = {};
  const auto take = [&](auto count, std::int64_t first) {
    constexpr int kRows = decltype(count)::value;
    typename Terms::template Read<kCount> read[kRows];
    C batch[kSums][kCount] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) read[i] = terms.template read<kCount>(first + i * kColumnRows, column);
#pragma unroll
    for (int i = 0; i < kRows; ++i) terms.add(read[i], first + i * kColumnRows, column, batch);
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[k][j] += static_cast<double>(batch[k][j]);
    }
  };
  if (column < columns) {
    std::int64_t row = begin + threadIdx.x / kWarp;
    for (; row + (kAtOnce - 1) * kColumnRows < end; row += kAtOnce * kColumnRows) {
      take(std::integral_constant<int, kAtOnce>{}, row);
    }
    for (; row < end; row += kColumnRows) take(std::integral_constant<int, 1>{}, row);
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const double total = sum_over_warps(sums[k][j]);
      if (threadIdx.x < kWarp && column < columns) {
        partial[(static_cast<std::int64_t>(blockIdx.y) * kSums + k) * columns + column + j] = total;
      }
    }
  }
}

// out[k][column] = scale·Σ partial[slice][k][column]
template <class C, int kSums>
__global__ void add_slices_kernel(const double* partial, std::int64_t slices, std::int64_t columns, double scale,
                                  ColumnOutputs<C, kSums> out) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    double sum = 0;
    if (column < columns) {
      for (std::int64_t slice = threadIdx.x / kWarp; slice < slices; slice += kColumnRows) {
        sum += partial[(slice * kSums + k) * columns + column];
      }
    }
    const double total = sum_over_warps(sum);
    if (threadIdx.x < kWarp && column < columns && out.at[k].present()) {
      out.at[k].write(column, static_cast<C>(total * scale));
    }
  }
}

template <class C, int kSums>
void add_slices(const char* name, const double* partial, std::int64_t slices, std::int64_t columns, double scale,
                const ColumnOutputs<C, kSums>& out) {
  launch(name, {.x = ceil_div(columns, kWarp)}, kColumnThreads, 0, add_slices_kernel<C, kSums>, partial, slices,
         columns, scale, out);
}

// out[k][column] = scale·Σ over rows of terms(row, column)[k]
template <class C, int kSums, class Terms>
void sum_columns(const char* name, Workspace& workspace, const Terms& terms, std::int64_t rows, std::int64_t columns,
                 double scale, const ColumnOutputs<C, kSums>& out) {
  constexpr int kCount = kPackOf<C>;
  constexpr std::int64_t kMinRows = 64, kBlocks = 1024;  // of a slice; of all slices together, about
  const bool packs = terms.packs && columns % kCount == 0;
  const std::int64_t tiles = ceil_div(columns, kWarp * (packs ? kCount : 1));
  if (tiles == 0) return;
  std::int64_t slices = ceil_div(rows, kMinRows);
  if (slices > ceil_div(kBlocks, tiles)) slices = ceil_div(kBlocks, tiles);
  if (slices < 1) slices = 1;
  const std::int64_t step = ceil_div(rows, slices);
  double* partial = workspace.allocate<double>(slices * kSums * columns);
  const auto kernel = packs ? columns_kernel<kSums, kCount, Terms> : columns_kernel<kSums, 1, Terms>;
  launch(name, {.x = tiles, .y = slices}, kColumnThreads, 0, kernel, terms, rows, step, columns, partial);
  add_slices(name, partial, slices, columns, scale, out);
}

#endif

}  // namespace polygrad::cuda
