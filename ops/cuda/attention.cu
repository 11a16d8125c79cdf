// Attention's kernel table on a GPU.
#include "ops/cuda/attention_paths.h"

namespace polygrad {

const AttentionKernels& cuda_attention_kernels() {
  static constexpr AttentionKernels kKernels = {
      .tiled = {cuda::attention::tensor_core_forward, cuda::attention::tensor_core_backward},
      .linear = {cuda::attention::linear_forward, cuda::attention::linear_backward},
      .materialised = {cuda::attention::materialised_forward, cuda::attention::materialised_backward},
      .map = cuda::attention::map,
      .norms = cuda::attention::norms,
  };
  return kKernels;
}

}  // namespace polygrad
