// Calls of the CUDA runtime that failed, as exceptions.
//
// Where this stands: below everything in this folder and in ops/cuda. Internal: not installed.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace polygrad::cuda {

// Throws CudaError "[cuda] cudaStreamCreate failed: out of memory (cudaErrorMemoryAllocation)"; `what`, where given,
// says on what: "layer_norm: x f32 (8, 16)".
[[noreturn]] void fail(cudaError_t status, const char* call, const std::string& what = "");

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) fail(status, call);
}

}  // namespace polygrad::cuda
