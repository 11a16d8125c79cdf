// Products, as the families matmul, pre_norm and attention need them.
//
// Where this stands: above gemm.h; implemented in matmul.cu.
#pragma once

#include "engine/tensor_ref.h"
#include "engine/workspace.h"

namespace polygrad::cuda {

// out = alpha a b, as MatmulKernels::matmul.
void multiply_batches(Workspace& workspace, const TensorRef& a, const TensorRef& b, double alpha, const TensorRef& out);

// The reference with its last two dimensions exchanged.
inline TensorRef transposed_last(TensorRef ref) {
  const std::int32_t last = ref.dim - 1;
  const std::int64_t size = ref.sizes[last], stride = ref.strides[last];
  ref.sizes[last] = ref.sizes[last - 1];
  ref.strides[last] = ref.strides[last - 1];
  ref.sizes[last - 1] = size;
  ref.strides[last - 1] = stride;
  return ref;
}

enum class Turn { no, yes };

// y = x w (w is (k, n)), or x wᵀ (w is (n, k)), + bias + addend. x (rows, k), y and addend (rows, n) contiguous, bias
// (n); bias and addend may be absent. x and w have one dtype; y it too, or f32 where that is a 16-bit one; the addend
// y's.
void multiply_rows(Workspace& workspace, const TensorRef& x, const TensorRef& w, Turn turn, const TensorRef& bias,
                   const TensorRef& addend, const TensorRef& y);

}  // namespace polygrad::cuda
