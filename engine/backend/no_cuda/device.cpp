// What the CUDA side answers in a build without CUDA.
#include "engine/backend/device_memory.h"
#include "engine/backend/kernels.h"
#include "engine/error.h"

namespace polygrad {

namespace {

constexpr const char* kBuiltWithout =
    "[device] this polygrad was built without CUDA; configure with -DPOLYGRAD_CUDA=ON";

}  // namespace

int cuda_device_count() { return 0; }

void check_device(Device device) {
  if (device.type == DeviceType::cuda) throw DeviceError(kBuiltWithout);
}

std::string device_name(Device device) {
  check_device(device);
  return "the CPU";
}

const EngineKernels& cuda_engine_kernels(int) { throw DeviceError(kBuiltWithout); }
const DeviceMemory& cuda_memory() { throw DeviceError(kBuiltWithout); }

}  // namespace polygrad
