// The engine's own kernels, one table per device: just what tensors need before there is any mathematics.
//
// Where this stands: below tensor.cpp and autograd.cpp. Internal: not installed.
// Read next: cpu/kernels.cpp, cuda/kernels.cu.
#pragma once

#include "engine/device.h"
#include "engine/generator.h"
#include "engine/tensor_ref.h"

namespace polygrad {

struct EngineKernels {
  // Every element of `out` becomes `value`, converted to its dtype. Any strides.
  void (*fill)(const TensorRef& out, double value);
  // Elementwise copy between equal shapes, converting dtypes (float -> integer truncates toward zero, -> bool is != 0).
  // Any strides; the two must not overlap.
  void (*copy)(const TensorRef& from, const TensorRef& to);
  // into += from, equal floating dtypes and shapes, any strides.
  void (*accumulate)(const TensorRef& from, const TensorRef& into);
  // No NaN and no infinity. Any strides; true for integers.
  bool (*is_finite)(const TensorRef& tensor);
  // Contiguous f32 or f64, filled from `stream`: element i from Philox block i/4, word i%4 (uniform) or the block's two
  // Box-Muller pairs (normal).
  void (*random_uniform)(const TensorRef& out, const RandomStream& stream);
  void (*random_normal)(const TensorRef& out, const RandomStream& stream);
};

extern const EngineKernels cpu_engine_kernels;
// Selects the device for the calling thread. Throws DeviceError in a build without CUDA.
const EngineKernels& cuda_engine_kernels(int device);

inline const EngineKernels& engine_kernels(Device device) {
  return device.type == DeviceType::cuda ? cuda_engine_kernels(device.index) : cpu_engine_kernels;
}

}  // namespace polygrad
