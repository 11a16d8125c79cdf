// Kernels of the dropout family: f32, f64 and bf16 (multiplied in f32; CUDA: f16 too), contiguous, dimension 0 is the
// batch.
//
// Where this stands: between ops/dropout.cpp and ops/cpu/dropout.cpp. The numbers, on every device:
//   dropout:    element j of sample s draws word j mod 4 of Philox(seed, domain dropout, counter
//               (low 32 bits of floor(j/4), low and high 32 bits of s, low 32 bits of the stream's offset));
//   drop path:  sample s draws word 0 of Philox(seed, domain drop_path, counter (0, low s, high s, low offset)).
// The upper 24 bits of a word are a uniform u in [0, 1); u < p is dropped.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

struct DropoutStream {
  std::uint64_t seed;
  std::uint32_t offset;       // low 32 bits of the stream's
  std::int64_t first_sample;  // the number of row 0
  std::uint32_t threshold;    // dropped: word >> 8 < threshold, which is u < p
  double scale;               // of what is kept: 1/(1 - p)
};

struct DropoutKernels {
  void (*dropout)(Workspace&, const TensorRef& x, const DropoutStream& stream, const TensorRef& y);
  void (*drop_path)(Workspace&, const TensorRef& x, const DropoutStream& stream, const TensorRef& y);
  // y = x + drop_path(branch): of one dtype, f32 or f64; or branch 16 bit beside f32.
  void (*residual_add)(Workspace&, const TensorRef& x, const TensorRef& branch, const DropoutStream& stream,
                       const TensorRef& y);
};

extern const DropoutKernels cpu_dropout_kernels;
const DropoutKernels& cuda_dropout_kernels();
inline const DropoutKernels& dropout_kernels(DeviceType device) {
  return select_kernels(device, cpu_dropout_kernels, cuda_dropout_kernels);
}

}  // namespace polygrad
