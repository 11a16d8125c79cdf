// Sums down the columns of a matrix of terms, which need not lie in memory: each is formed where it is added.
//
// Where this stands: used by reduce.cu, norm.cu, matmul.cu. The rows are cut into slices whose number depends on the
// shape alone; a block sums 32 columns of a slice, eight rows at a time, in f64; the slices are added in order.
#pragma once

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
template <int kSums, class Terms>
__global__ void columns_kernel(Terms terms, std::int64_t rows, std::int64_t step, std::int64_t columns,
                               double* partial) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x % kWarp;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * step,
                     end = begin + step < rows ? begin + step : rows;
  double sums[kSums] = {};
  if (column < columns) {
    for (std::int64_t row = begin + threadIdx.x / kWarp; row < end; row += kColumnRows) {
      double term[kSums];
      terms(row, column, term);
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += term[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    const double total = sum_over_warps(sums[k]);
    if (threadIdx.x < kWarp && column < columns) {
      partial[(static_cast<std::int64_t>(blockIdx.y) * kSums + k) * columns + column] = total;
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
  constexpr std::int64_t kMinRows = 64, kBlocks = 1024;  // of a slice; of all slices together, about
  const std::int64_t tiles = ceil_div(columns, kWarp);
  if (tiles == 0) return;
  std::int64_t slices = ceil_div(rows, kMinRows);
  if (slices > ceil_div(kBlocks, tiles)) slices = ceil_div(kBlocks, tiles);
  if (slices < 1) slices = 1;
  const std::int64_t step = ceil_div(rows, slices);
  double* partial = workspace.allocate<double>(slices * kSums * columns);
  launch(name, {.x = tiles, .y = slices}, kColumnThreads, 0, columns_kernel<kSums, Terms>, terms, rows, step, columns,
         partial);
  add_slices(name, partial, slices, columns, scale, out);
}

#endif

}  // namespace polygrad::cuda
