// What the engine asks about GPUs, and how launches are checked.
#include "engine/device.h"

#include "engine/backend/cuda/context.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

int cuda_device_count() { return cuda::device_count(); }

void check_device(Device device) {
  if (device.type == DeviceType::cuda) cuda::device_properties(device.index);
}

std::string device_name(Device device) {
  return device.type == DeviceType::cuda ? cuda::device_properties(device.index).name : "the CPU";
}

namespace cuda {

#if !defined(POLYGRAD_CUDA_ARCHITECTURES)
#define POLYGRAD_CUDA_ARCHITECTURES "no architecture"
#endif
const char* built_architectures() { return POLYGRAD_CUDA_ARCHITECTURES; }

void no_kernel_for(DType dtype) {
  throw InternalError(format("[kernel] {} reached a CUDA kernel that does not compute in it", to_string(dtype)));
}

void check_grid(const char* name, const Grid& grid) {
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) {
    throw InternalError(
        format("[{}] a grid of {} x {} x {} blocks is more than a GPU has", name, grid.x, grid.y, grid.z));
  }
}

void check_launch(const char* name, const Grid& grid, int threads, std::size_t shared, cudaError_t status) {
#if defined(POLYGRAD_DCHECK_ENABLED)
  if (status == cudaSuccess && context().pool == 0) status = cudaStreamSynchronize(context().stream().handle);
#endif
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail(status, format("kernel {}", name).c_str(),
       format("grid {} x {} x {}, {} threads, {} bytes of shared memory", grid.x, grid.y, grid.z, threads, shared));
}

}  // namespace cuda
}  // namespace polygrad
