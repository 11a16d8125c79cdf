// The matmul family on a GPU: products by cuBLASLt (gemm.h), and what is not a product in one pass of our own: the
// exact GELU, where the library has only the tanh form, its gradient with the bias's on the way, column sums.
#include "ops/kernels/matmul.h"

#include "engine/backend/kernels.h"
#include "ops/cuda/columns.h"
#include "ops/cuda/elementwise.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/products.h"
#include "ops/kernels/unary.h"

namespace polygrad::cuda {

// --- a bias that cuBLASLt doesn't add --------------------------------------------------------------------------------

namespace {

constexpr int kThreads = 256;

template <class C>
__global__ void add_bias_kernel(Input<C> bias, std::int64_t rows, Divisor columns, std::int64_t leading,
                                std::int64_t batch_stride, Input<C> from, Output<C> to) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * columns.value) return;
  std::int64_t column;
  const std::int64_t row = columns.split(i, &column), at = blockIdx.y * batch_stride + row * leading + column;
  to.write(at, from[at] + bias[column]);
}

}  // namespace

void add_bias(const Gemm& p) {
  TensorRef result, bias;
  result.data = p.c;
  bias.data = const_cast<void*>(p.bias);
  result.dtype = bias.dtype = p.out_dtype;
  dispatch_compute(p.out_dtype, [&](auto tag) {
    using C = decltype(tag);
    launch("add_bias", {.x = ceil_div(p.m * p.n, kThreads), .y = p.batch}, kThreads, 0, add_bias_kernel<C>,
           Input<C>(bias), p.m, Divisor(p.n), p.ldc, p.stride_c, Input<C>(result), Output<C>(result));
  });
}

// --- products -------------------------------------------------------------------------------------------------------

namespace {

// A batch of products, before its dimensions become rows, sums, or cuBLASLt's batch.
struct Product : Gemm {
  int dims = 0;
  std::int64_t sizes[8], strides_a[8], strides_b[8], strides_c[8];
};

Product describe_product(const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  const int row = out.dim - 2, column = out.dim - 1;
  Product p;
  p.dtype = a.dtype;
  p.out_dtype = out.dtype;
  p.m = out.sizes[row];
  p.n = out.sizes[column];
  p.k = a.sizes[column];
  const MatrixLayout left = matrix_layout(p.m, p.k, a.strides[row], a.strides[column]);
  const MatrixLayout right = matrix_layout(p.k, p.n, b.strides[row], b.strides[column]);
  const MatrixLayout result = matrix_layout(p.m, p.n, out.strides[row], out.strides[column]);
  p.trans_a = left.transposed;
  p.trans_b = right.transposed;
  p.a = a.data;
  p.b = b.data;
  p.c = out.data;
  p.lda = left.leading;
  p.ldb = right.leading;
  p.ldc = result.leading;
  for (int d = 0; d < row; ++d) {
    const std::int64_t size = out.sizes[d];
    if (size == 1) continue;
    const int last = p.dims - 1;
    // Neighbours that lie behind one another in all three become one dimension.
    const bool merges = last >= 0 && p.strides_a[last] == size * a.strides[d] &&
                        p.strides_b[last] == size * b.strides[d] && p.strides_c[last] == size * out.strides[d];
    const int place = merges ? last : p.dims++;
    p.sizes[place] = merges ? p.sizes[place] * size : size;
    p.strides_a[place] = a.strides[d];
    p.strides_b[place] = b.strides[d];
    p.strides_c[place] = out.strides[d];
  }
  return p;
}

// The innermost batch dimension becomes rows (one B for all), or part of the sum (one C for all), where the matrices
// lie behind one another: one large product is faster than many small.
void fold_batch(Product& p) {
  const int last = p.dims - 1;
  if (last < 0) return;
  const std::int64_t size = p.sizes[last], a = p.strides_a[last], b = p.strides_b[last], c = p.strides_c[last];
  if (b == 0 && c != 0 && !p.trans_a) {
    // The distance of two rows of a matrix with a single one is free: take the distance of two matrices.
    const std::int64_t lda = p.m == 1 ? a : p.lda, ldc = p.m == 1 ? c : p.ldc;
    if (lda < p.k || ldc < p.n || a != p.m * lda || c != p.m * ldc) return;
    p.lda = lda;
    p.ldc = ldc;
    p.m *= size;
    --p.dims;
  } else if (c == 0 && p.trans_a && !p.trans_b) {
    const std::int64_t lda = p.k == 1 ? a : p.lda, ldb = p.k == 1 ? b : p.ldb;
    if (lda < p.m || ldb < p.n || a != p.k * lda || b != p.k * ldb) return;
    p.lda = lda;
    p.ldb = ldb;
    p.k *= size;
    --p.dims;
  }
}

}  // namespace

void multiply_batches(Workspace& workspace, const TensorRef& a, const TensorRef& b, double alpha,
                      const TensorRef& out) {
  Product p = describe_product(a, b, out);
  p.alpha = alpha;
  if (p.m == 0 || p.n == 0) return;
  bool empty = p.k == 0, adds = false;
  for (int d = 0; d < p.dims; ++d) {
    empty = empty || p.sizes[d] == 0;
    if (p.sizes[d] == 0 && p.strides_c[d] != 0) return;  // no result either
    adds = adds || p.strides_c[d] == 0;
  }
  if (empty) {
    TensorRef once = out;  // places that several products share are filled once
    for (int d = 0; d < once.dim; ++d) once.sizes[d] = once.strides[d] == 0 ? 1 : once.sizes[d];
    cuda_engine_kernels(workspace.device().index).fill(once, 0);
    return;
  }
  fold_batch(p);
  // The innermost dimension that is left is cuBLASLt's batch, unless its products are added up.
  const int last = p.dims - 1;
  int loops = p.dims;
  if (last >= 0 && p.strides_c[last] != 0) {
    p.batch = p.sizes[last];
    p.stride_a = p.strides_a[last];
    p.stride_b = p.strides_b[last];
    p.stride_c = p.strides_c[last];
    --loops;
  }
  std::int64_t count = 1;
  for (int d = 0; d < loops; ++d) count *= p.sizes[d];
  const auto bytes = static_cast<std::int64_t>(dtype_size(p.dtype)),
             out_bytes = static_cast<std::int64_t>(dtype_size(p.out_dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    Gemm one = p;
    bool first = true;  // of those that are added up here
    std::int64_t rest = i;
    for (int d = loops - 1; d >= 0; --d) {
      const std::int64_t at = rest % p.sizes[d];
      rest /= p.sizes[d];
      one.a = static_cast<const char*>(one.a) + at * p.strides_a[d] * bytes;
      one.b = static_cast<const char*>(one.b) + at * p.strides_b[d] * bytes;
      one.c = static_cast<char*>(one.c) + at * p.strides_c[d] * out_bytes;
      first = first && (p.strides_c[d] != 0 || at == 0);
    }
    if (!first) one.addend = one.c;
    gemm(workspace, one);
  }
}

namespace {

void matmul(Workspace& workspace, const TensorRef& a, const TensorRef& b, const TensorRef& out) {
  multiply_batches(workspace, a, b, 1, out);
}

// --- linear ---------------------------------------------------------------------------------------------------------

void linear(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
            const TensorRef& y) {
  multiply_rows(workspace, x, weight, Turn::yes, bias, {}, y);
}

// pre = x op(w) + bias, y = gelu(pre)
void with_gelu(Workspace& workspace, const TensorRef& x, const TensorRef& w, const TensorRef& bias,
               const TensorRef& pre, const TensorRef& y) {
  const TensorRef& argument = pre.present() ? pre : y;
  multiply_rows(workspace, x, w, Turn::yes, bias, {}, argument);
  cuda_unary_kernels().forward[functors::kPlace<functors::Gelu>](workspace, argument, y);
}

void linear_gelu(Workspace& workspace, const TensorRef& x, const TensorRef& weight, const TensorRef& bias,
                 const TensorRef& pre, const TensorRef& y) {
  with_gelu(workspace, x, weight, bias, pre, y);
}

// Writes the gradient of gelu's argument where it adds it.
template <class C_>
struct GeluTerms {
  using C = C_;
  Input<C> grad, pre;
  Output<C> out;
  std::int64_t columns;
  bool packs;
  template <int kCount>
  struct Read {
    C grad[kCount], pre[kCount];
  };
  template <int kCount>
  __device__ __forceinline__ Read<kCount> read(std::int64_t row, std::int64_t column) const {
    Read<kCount> result;
    grad.read(row * columns + column, result.grad);
    pre.read(row * columns + column, result.pre);
    return result;
  }
  template <int kCount>
  __device__ __forceinline__ void add(const Read<kCount>& x, std::int64_t row, std::int64_t column,
                                      C (&sums)[1][kCount]) const {
    C value[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      value[j] = x.grad[j] * functors::Gelu::derivative(x.pre[j], C(0));
      sums[0][j] += value[j];
    }
    out.write(row * columns + column, value);
  }
};

void linear_gelu_backward(Workspace& workspace, const TensorRef& grad_y, const TensorRef& pre,
                          const TensorRef& grad_pre, const TensorRef& grad_bias) {
  if (!grad_bias.present()) {
    cuda_unary_kernels().backward[functors::kPlace<functors::Gelu>](workspace, grad_y, pre, grad_pre);
    return;
  }
  dispatch_compute(pre.dtype, [&](auto tag) {
    using C = decltype(tag);
    sum_columns("linear_gelu_backward", workspace,
                GeluTerms<C>{Input<C>(grad_y), Input<C>(pre), Output<C>(grad_pre), pre.sizes[1],
                             aligned(grad_y.data, pre.data, grad_pre.data)},
                pre.sizes[0], pre.sizes[1], 1, ColumnOutputs<C, 1>{{Output<C>(grad_bias)}});
  });
}

template <class C_>
struct MatrixTerms {
  using C = C_;
  Input<C> x;
  std::int64_t columns;
  bool packs;
  template <int kCount>
  struct Read {
    C x[kCount];
  };
  template <int kCount>
  __device__ __forceinline__ Read<kCount> read(std::int64_t row, std::int64_t column) const {
    Read<kCount> result;
    x.read(row * columns + column, result.x);
    return result;
  }
  template <int kCount>
  __device__ __forceinline__ void add(const Read<kCount>& read, std::int64_t, std::int64_t,
                                      C (&sums)[1][kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) sums[0][j] += read.x[j];
  }
};

void column_sums(Workspace& workspace, const TensorRef& x, const TensorRef& sums) {
  dispatch_compute(x.dtype, [&](auto tag) {
    using C = decltype(tag);
    sum_columns("column_sums", workspace, MatrixTerms<C>{Input<C>(x), x.sizes[1], aligned(x.data)}, x.sizes[0],
                x.sizes[1], 1, ColumnOutputs<C, 1>{{Output<C>(sums)}});
  });
}

// --- products by a weight that was rounded once ----------------------------------------------------------------------

// The packed order is Bᵀ, (n, k) by rows.
TensorRef unpacked(const TensorRef& packed, std::int64_t n, std::int64_t k) {
  TensorRef ref = packed;
  ref.dim = 2;
  ref.sizes[0] = n, ref.sizes[1] = k;
  ref.strides[0] = k, ref.strides[1] = 1;
  return ref;
}

void pack(Workspace& workspace, const TensorRef& b, const TensorRef& packed) {
  const TensorRef turned = transposed_last(unpacked(packed, b.sizes[1], b.sizes[0]));
  cuda_engine_kernels(workspace.device().index).copy(b, turned);
}

void linear_packed(Workspace& workspace, const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                   const TensorRef& y) {
  multiply_rows(workspace, x, unpacked(packed, y.sizes[1], x.sizes[1]), Turn::yes, bias, {}, y);
}

void linear_gelu_packed(Workspace& workspace, const TensorRef& x, const TensorRef& packed, const TensorRef& bias,
                        const TensorRef& pre, const TensorRef& y) {
  with_gelu(workspace, x, unpacked(packed, y.sizes[1], x.sizes[1]), bias, pre, y);
}

constexpr MatmulKernels kKernels = {matmul,      linear, linear_gelu,   linear_gelu_backward,
                                    column_sums, pack,   linear_packed, linear_gelu_packed};

}  // namespace

// x (rows, k) op(w) + bias + addend, for this family and pre_norm's.
void multiply_rows(Workspace& workspace, const TensorRef& x, const TensorRef& w, Turn turn, const TensorRef& bias,
                   const TensorRef& addend, const TensorRef& y) {
  Product p = describe_product(x, turn == Turn::yes ? transposed_last(w) : w, y);
  if (p.m == 0 || p.n == 0) return;
  TensorRef own_bias = bias;
  if (bias.present() && bias.dtype != y.dtype) {  // as the library wants it
    own_bias.dtype = y.dtype;
    own_bias.data = workspace.allocate(static_cast<std::size_t>(p.n) * dtype_size(y.dtype));
    cuda_engine_kernels(workspace.device().index).copy(bias, own_bias);
  }
  p.bias = own_bias.data;
  p.addend = addend.data;
  if (p.k > 0) return gemm(workspace, p);
  const EngineKernels& engine = cuda_engine_kernels(workspace.device().index);
  if (addend.present()) {
    engine.copy(addend, y);
  } else {
    engine.fill(y, 0);
  }
  if (bias.present()) add_bias(p);
}

}  // namespace polygrad::cuda

namespace polygrad {

const MatmulKernels& cuda_matmul_kernels() { return cuda::kKernels; }

}  // namespace polygrad
