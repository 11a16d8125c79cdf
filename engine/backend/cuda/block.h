// What the threads of a block do together: sums and maxima over a warp or a block, in a fixed order.
//
// Where this stands: below the kernels that reduce. Every sum is formed in an order that depends on the block's size
// alone, so results have the same bits each time. All functions are for device code; all threads of the group call
// them. Internal: not installed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "engine/tensor_ref.h"

namespace polygrad::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

#if defined(__CUDACC__)
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char polygrad_dynamic_shared[];
  return polygrad_dynamic_shared;
}
#elif defined(POLYGRAD_HOST_CUDA)
inline unsigned char* dynamic_shared() { return host_cuda::dynamic_shared(); }
#endif

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

// Ways to combine two numbers.
struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
  template <class T>
  static __device__ T identity() {
    return T(0);
  }
};
// NaN where there is one.
struct Largest {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return (a >= b) | (a != a) ? a : b;
  }
};

// All lanes get the result.
template <class Op, class T>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, value, distance);
    // The lower lane's number stands first for both, so that both get the same bits, whatever op is.
    value = (threadIdx.x & static_cast<unsigned>(distance)) != 0 ? op(other, value) : op(value, other);
  }
  return value;
}
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  return warp_reduce(value, Sum());
}

// All threads of a block of kThreads get the result. kThreads is a multiple of 32.
template <int kThreads, class Op, class T>
__device__ __forceinline__ T block_reduce(T value, Op op) {
  constexpr int kWarps = kThreads / kWarp;
  value = warp_reduce(value, op);
  if constexpr (kWarps == 1) return value;
  __shared__ T parts[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncthreads();  // an earlier call's parts have been read
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = parts[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) value = op(value, parts[i]);
  return value;
}
template <int kThreads, class T>
__device__ __forceinline__ T block_sum(T value) {
  return block_reduce<kThreads>(value, Sum());
}

// A group is a warp (kThreads = 32, several in a block) or a whole block.
template <int kThreads, class Op, class T>
__device__ __forceinline__ T group_reduce(T value, Op op) {
  if constexpr (kThreads == kWarp) {
    return warp_reduce(value, op);
  } else {
    return block_reduce<kThreads>(value, op);
  }
}
template <int kThreads, class T>
__device__ __forceinline__ T group_sum(T value) {
  return group_reduce<kThreads>(value, Sum());
}

#endif

}  // namespace polygrad::cuda
