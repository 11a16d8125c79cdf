// Kernels of the matmul family: f32, f64, and bf16 with sums in f32 (CUDA: f16 too, wherever bf16 is said).
//
// Where this stands: between ops/matmul.cpp and ops/cpu/matmul.cpp. A matrix argument may lie in memory by rows or by
// columns (matrix_layout), so a transposed view is multiplied without a copy. The arguments of a call have one dtype,
// but where another is named.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

// How a (rows, cols) matrix with these strides lies in memory: row-major with a leading dimension, column-major (then
// it is the transposed of a row-major one), or neither.
struct MatrixLayout {
  bool valid;
  bool transposed;
  std::int64_t leading;
};
POLYGRAD_INLINE MatrixLayout matrix_layout(std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
                                           std::int64_t col_stride) {
  const std::int64_t min_row = cols > 1 ? cols : 1, min_col = rows > 1 ? rows : 1;
  if ((cols <= 1 || col_stride == 1) && (rows <= 1 || row_stride >= min_row)) {
    return {true, false, rows <= 1 ? min_row : row_stride};
  }
  if ((rows <= 1 || row_stride == 1) && (cols <= 1 || col_stride >= min_col)) {
    return {true, true, cols <= 1 ? min_col : col_stride};
  }
  return {false, false, 0};
}

struct MatmulKernels {
  // out = a b. a (batch..., m, k), b (batch..., k, n), out (batch..., m, n), with the same batch sizes: a batch stride
  // of 0 broadcasts in a and b; in out it means that the products are added up. out's matrices are row-major. Of bf16
  // factors out may be f32 too.
  void (*matmul)(Workspace&, const TensorRef& a, const TensorRef& b, const TensorRef& out);
  // y = x weightᵀ + bias. x (rows, in), weight (out, in), bias (out) contiguous or absent, y (rows, out) contiguous.
  void (*linear)(Workspace&, const TensorRef& x, const TensorRef& weight, const TensorRef& bias, const TensorRef& y);
  // pre = x weightᵀ + bias, y = gelu(pre); pre is not stored where it is absent.
  void (*linear_gelu)(Workspace&, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
                      const TensorRef& pre, const TensorRef& y);
  // grad_pre = grad_y gelu'(pre); grad_bias = its column sums, where present. All contiguous.
  void (*linear_gelu_backward)(Workspace&, const TensorRef& grad_y, const TensorRef& pre, const TensorRef& grad_pre,
                               const TensorRef& grad_bias);
  // sums (cols) = the column sums of x (rows, cols), both contiguous. Of bf16 the sums, also grad_bias above, are f32.
  void (*column_sums)(Workspace&, const TensorRef& x, const TensorRef& sums);

  // Products in bf16 by a weight (ops/rounded_weights.h), which is rounded and arranged once: packed (k·n) bf16, in the
  // device's own order, of b (k, n) f32, by rows or by columns, not empty.
  void (*pack)(Workspace&, const TensorRef& b, const TensorRef& packed);
  // y = x b + bias: x (rows, k) bf16, bias (n) f32 or absent, y (rows, n) bf16, or f32 (then without bias); contiguous.
  void (*linear_packed)(Workspace&, const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                        const TensorRef& y);
  // pre = x b + bias and y = gelu(pre), of the rounded pre, in bf16; pre is not stored where it is absent.
  void (*linear_gelu_packed)(Workspace&, const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                             const TensorRef& pre, const TensorRef& y);
};

extern const MatmulKernels cpu_matmul_kernels;
const MatmulKernels& cuda_matmul_kernels();
inline const MatmulKernels& matmul_kernels(DeviceType device) {
  return select_kernels(device, cpu_matmul_kernels, cuda_matmul_kernels);
}

}  // namespace polygrad
