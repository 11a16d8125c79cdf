// How an op's front reaches its kernels: one constant table of function pointers per family and device.
//
// Where this stands: included by every ops/kernels/<family>.h, which declares, for its struct of function pointers:
//     extern const NormKernels cpu_norm_kernels;      // ops/cpu/norm.cpp, constant-initialised
//     const NormKernels& cuda_norm_kernels();         // ops/cuda/norm.cu, or ops/no_cuda.cpp, which throws
//     inline const NormKernels& norm_kernels(DeviceType device) {
//       return select_kernels(device, cpu_norm_kernels, cuda_norm_kernels);
//     }
// There is no registration at start-up (a linker would drop it) and no virtual class. A null entry means "no such
// kernel": the front asks with require_kernel.
#pragma once

#include "engine/device.h"
#include "engine/dtype.h"

namespace polygrad {

// Throws DeviceError where this CPU lacks the instructions that ops/cpu was compiled for; checked once.
void check_cpu_instructions();

template <class Kernels>
const Kernels& select_kernels(DeviceType device, const Kernels& cpu, const Kernels& (*cuda)()) {
  if (device == DeviceType::cuda) return cuda();
  check_cpu_instructions();
  return cpu;
}

// Throws NotImplementedError "[op] no CUDA kernel ..." where `kernel` is null.
void require_kernel(const char* op, bool present, DeviceType device);

// Throws InternalError: a kernel was given a dtype that its front should have refused.
[[noreturn]] void refuse_dtype(DType dtype);

}  // namespace polygrad
