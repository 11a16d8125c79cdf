// The pre_norm family on a GPU: the halves of a pre-norm transformer block, from layer norm, products and GELU. What
// cuBLASLt can do on the way (bias, residual) it does; the normalised rows are formed again in the backward.
#include "ops/kernels/pre_norm.h"

#include "engine/backend/kernels.h"
#include "ops/cuda/norm.h"
#include "ops/cuda/products.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/norm.h"
#include "ops/kernels/unary.h"

namespace polygrad::cuda {
namespace {

constexpr int kGelu = functors::kPlace<functors::Gelu>;

// A matrix of scratch memory.
TensorRef scratch(Workspace& workspace, std::int64_t rows, std::int64_t columns, DType dtype) {
  TensorRef ref;
  ref.data = workspace.allocate(static_cast<std::size_t>(rows * columns) * dtype_size(dtype));
  ref.dtype = dtype;
  ref.dim = 2;
  ref.sizes[0] = rows, ref.sizes[1] = columns;
  ref.strides[0] = columns, ref.strides[1] = 1;
  return ref;
}

// The dtype that a product by this weight reads and, within a block's half, writes.
DType product_dtype(const RowLinear& linear) {
  return linear.packed.present() ? linear.packed.dtype : linear.weight.dtype;
}

// The packed order of a (k, n) matrix is (n, k) by rows.
TensorRef unpacked(const RowLinear& linear, std::int64_t n, std::int64_t k) {
  TensorRef ref = linear.packed;
  ref.dim = 2;
  ref.sizes[0] = n, ref.sizes[1] = k;
  ref.strides[0] = k, ref.strides[1] = 1;
  return ref;
}

// y = x weightᵀ + bias + addend: in a forward packed is weightᵀ.
void apply(Workspace& workspace, const RowLinear& linear, const TensorRef& x, const TensorRef& addend,
           const TensorRef& y) {
  const std::int64_t out = linear.weight.sizes[0], in = linear.weight.sizes[1];
  const bool narrow = linear.packed.present();
  multiply_rows(workspace, x, narrow ? unpacked(linear, out, in) : linear.weight, Turn::yes, linear.bias, addend, y);
}

// dx = g weight: in a backward packed is weight.
void apply_back(Workspace& workspace, const RowLinear& linear, const TensorRef& g, const TensorRef& dx) {
  const std::int64_t out = linear.weight.sizes[0], in = linear.weight.sizes[1];
  if (linear.packed.present()) {
    multiply_rows(workspace, g, unpacked(linear, in, out), Turn::yes, {}, {}, dx);
  } else {
    multiply_rows(workspace, g, linear.weight, Turn::no, {}, {}, dx);
  }
}

// dweight = gᵀ x, dbias = the column sums of g; each where it is wanted.
void parameter_gradients(Workspace& workspace, const TensorRef& g, const TensorRef& x,
                         const RowLinearGradients& gradients) {
  if (gradients.weight.present()) cuda_matmul_kernels().matmul(workspace, transposed_last(g), x, gradients.weight);
  if (gradients.bias.present()) cuda_matmul_kernels().column_sums(workspace, g, gradients.bias);
}

// norm(x) in the products' dtype; the statistics are written.
TensorRef normalise(Workspace& workspace, const RowNorm& norm, DType dtype) {
  const TensorRef result = scratch(workspace, norm.x.sizes[0], norm.x.sizes[1], dtype);
  cuda_norm_kernels().layer_norm(workspace, norm.x, norm.weight, norm.bias, norm.eps, result, norm.mean, norm.rstd);
  return result;
}
// The same from the statistics.
TensorRef normalise_again(Workspace& workspace, const RowNorm& norm, DType dtype) {
  const TensorRef result = scratch(workspace, norm.x.sizes[0], norm.x.sizes[1], dtype);
  layer_norm_again(norm.x, norm.weight, norm.bias, norm.mean, norm.rstd, result);
  return result;
}

// (rows, columns) as (samples, what a sample has).
TensorRef by_sample(TensorRef ref, const BranchScale& scale) {
  ref.sizes[1] *= scale.rows_per_sample;
  ref.sizes[0] /= scale.rows_per_sample;
  ref.strides[0] = ref.sizes[1];
  return ref;
}

// Drop path's factor times x, in `dtype`; x itself where that changes nothing.
TensorRef scaled(Workspace& workspace, const TensorRef& x, const BranchScale& scale, DType dtype) {
  if (scale.stream.threshold == 0 && x.dtype == dtype) return x;
  const TensorRef result = scratch(workspace, x.sizes[0], x.sizes[1], dtype);
  if (scale.stream.threshold == 0) {
    cuda_engine_kernels(workspace.device().index).copy(x, result);
  } else {
    cuda_dropout_kernels().drop_path(workspace, by_sample(x, scale), scale.stream, by_sample(result, scale));
  }
  return result;
}

// residual + scale · (x weightᵀ + bias)
void add_branch(Workspace& workspace, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
                const BranchScale& scale, const TensorRef& y) {
  if (scale.stream.threshold == 0) return apply(workspace, linear, x, residual, y);
  const TensorRef branch = scratch(workspace, y.sizes[0], y.sizes[1], y.dtype);
  apply(workspace, linear, x, {}, branch);
  cuda_dropout_kernels().residual_add(workspace, by_sample(residual, scale), by_sample(branch, scale), scale.stream,
                                      by_sample(y, scale));
}

// --- the table ------------------------------------------------------------------------------------------------------

void linear(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& y) {
  const TensorRef normalised = normalise(workspace, norm, product_dtype(linear));
  apply(workspace, linear, normalised, {}, y);
}

// The gradient of norm(x), through the norm; `residual` is added to x's.
void norm_gradients(Workspace& workspace, const RowNorm& norm, const TensorRef& upper, const TensorRef& residual,
                    const RowNormGradients& gradients) {
  layer_norm_backward_add(workspace, upper, norm.x, norm.weight, norm.mean, norm.rstd, residual, gradients.x,
                          gradients.weight, gradients.bias);
}
bool any(const RowNormGradients& gradients) {
  return gradients.x.present() || gradients.weight.present() || gradients.bias.present();
}

void linear_backward(Workspace& workspace, const RowNorm& norm, const RowLinear& linear, const TensorRef& grad,
                     const RowNormGradients& gradients, const RowLinearGradients& linear_gradients) {
  const TensorRef normalised =
      linear_gradients.weight.present() ? normalise_again(workspace, norm, grad.dtype) : TensorRef{};
  parameter_gradients(workspace, grad, normalised, linear_gradients);
  if (!any(gradients)) return;
  const TensorRef upper = scratch(workspace, norm.x.sizes[0], norm.x.sizes[1], norm.x.dtype);
  apply_back(workspace, linear, grad, upper);
  norm_gradients(workspace, norm, upper, {}, gradients);
}

void linear_residual(Workspace& workspace, const TensorRef& residual, const TensorRef& x, const RowLinear& linear,
                     const BranchScale& scale, const TensorRef& y) {
  add_branch(workspace, residual, x, linear, scale, y);
}

void linear_residual_backward(Workspace& workspace, const TensorRef& x, const RowLinear& linear,
                              const BranchScale& scale, const TensorRef& grad, const TensorRef& grad_x,
                              const RowLinearGradients& gradients) {
  const TensorRef g = scaled(workspace, grad, scale, x.dtype);
  parameter_gradients(workspace, g, x, gradients);
  if (grad_x.present()) apply_back(workspace, linear, g, grad_x);
}

void mlp(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
         const BranchScale& scale, const TensorRef& pre, const TensorRef& y) {
  const std::int64_t rows = norm.x.sizes[0], hidden = fc1.weight.sizes[0];
  const DType dtype = product_dtype(fc1);
  const TensorRef normalised = normalise(workspace, norm, dtype);
  const TensorRef h = scratch(workspace, rows, hidden, dtype), argument = pre.present() ? pre : h;
  apply(workspace, fc1, normalised, {}, argument);
  cuda_unary_kernels().forward[kGelu](workspace, argument, h);
  add_branch(workspace, norm.x, h, fc2, scale, y);
}

void mlp_backward(Workspace& workspace, const RowNorm& norm, const RowLinear& fc1, const RowLinear& fc2,
                  const BranchScale& scale, const TensorRef& pre, const TensorRef& grad,
                  const RowNormGradients& gradients, const RowLinearGradients& fc1_gradients,
                  const RowLinearGradients& fc2_gradients) {
  const std::int64_t rows = norm.x.sizes[0], hidden = fc1.weight.sizes[0];
  const DType dtype = pre.dtype;
  const TensorRef g = scaled(workspace, grad, scale, dtype);
  const TensorRef h = scratch(workspace, rows, hidden, dtype), grad_h = scratch(workspace, rows, hidden, dtype);
  if (fc2_gradients.weight.present()) cuda_unary_kernels().forward[kGelu](workspace, pre, h);
  parameter_gradients(workspace, g, h, fc2_gradients);
  apply_back(workspace, fc2, g, grad_h);
  // h's place takes the gradient of pre: a stream does one thing after another.
  cuda_matmul_kernels().linear_gelu_backward(workspace, grad_h, pre, h, fc1_gradients.bias);
  const TensorRef normalised = fc1_gradients.weight.present() ? normalise_again(workspace, norm, dtype) : TensorRef{};
  parameter_gradients(workspace, h, normalised, {fc1_gradients.weight, {}});
  if (!any(gradients)) return;
  const TensorRef upper = scratch(workspace, rows, norm.x.sizes[1], norm.x.dtype);
  apply_back(workspace, fc1, h, upper);
  norm_gradients(workspace, norm, upper, grad, gradients);
}

constexpr PreNormKernels kKernels = {
    .linear = linear,
    .linear_backward = linear_backward,
    .linear_residual = linear_residual,
    .linear_residual_backward = linear_residual_backward,
    .mlp = mlp,
    .mlp_backward = mlp_backward,
};

}  // namespace
}  // namespace polygrad::cuda

namespace polygrad {

const PreNormKernels& cuda_pre_norm_kernels() { return cuda::kKernels; }

}  // namespace polygrad
