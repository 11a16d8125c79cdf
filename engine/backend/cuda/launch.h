// How a kernel is started.
//
// Where this stands: above context.h, below every .cu file. Those files have no other CUDA syntax than the words
// __global__, __device__ and __shared__, so that a C++ compiler with a <cuda_runtime.h> of its own (tests/cuda/host)
// understands them too, and runs their kernels on the CPU.
// Read next: element.h (what kernels read and write), kernels.cu. Internal: not installed.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/status.h"

namespace polygrad::cuda {

// The architectures of this build's kernels: "sm_80, sm_90"; and whether the selected device can run one of them.
const char* built_architectures();
cudaError_t find_kernel_image();

// Blocks in up to three dimensions, each of `threads` threads. A grid without blocks starts nothing.
struct Grid {
  std::int64_t x = 1, y = 1, z = 1;
};

// Throws InternalError for a grid that no GPU has.
void check_grid(const char* name, const Grid& grid);
// After a launch: throws CudaError naming the kernel; in a build with POLYGRAD_DCHECK it waits for the kernel's end.
void check_launch(const char* name, const Grid& grid, int threads, std::size_t shared, cudaError_t status);

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)
// Starts kernel(arguments...) in the current stream of the selected device, with `shared` bytes of dynamic shared
// memory.
template <class... Parameters, class... Arguments>
void launch(const char* name, const Grid& grid, int threads, std::size_t shared, void (*kernel)(Parameters...),
            Arguments&&... arguments) {
  if (grid.x <= 0 || grid.y <= 0 || grid.z <= 0) return;
  check_grid(name, grid);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = context().stream().handle;
  check_launch(name, grid, threads, shared, cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}
#endif

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace polygrad::cuda
