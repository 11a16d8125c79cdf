// Matrix products for the tests' CUDA runtime: in place of ops/cuda/gemm.cpp, one thread an element, sums in f64.
#include "ops/cuda/gemm.h"

#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/walk.h"
#include "engine/error.h"

namespace polygrad::cuda {
namespace {

template <class C>
__global__ void gemm_kernel(Gemm p, Input<C> a, Input<C> b, Input<C> bias, Input<C> addend, Output<C> c) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x, batch = blockIdx.y;
  if (i >= p.m * p.n) return;
  const std::int64_t row = i / p.n, column = i % p.n, at = batch * p.stride_c + row * p.ldc + column;
  double sum = 0;
  for (std::int64_t k = 0; k < p.k; ++k) {
    const std::int64_t of_a = p.trans_a ? k * p.lda + row : row * p.lda + k;
    const std::int64_t of_b = p.trans_b ? column * p.ldb + k : k * p.ldb + column;
    sum += static_cast<double>(a[batch * p.stride_a + of_a]) * static_cast<double>(b[batch * p.stride_b + of_b]);
  }
  sum *= p.alpha;
  if (bias.present()) sum += static_cast<double>(bias[column]);
  if (addend.present()) sum += static_cast<double>(addend[at]);
  c.write(at, static_cast<C>(sum));
}

TensorRef ref_of(const void* data, DType dtype) {
  TensorRef ref;
  ref.data = const_cast<void*>(data);
  ref.dtype = dtype;
  return ref;
}

}  // namespace

void gemm(Workspace&, const Gemm& p) {
  const std::int64_t rows_a = p.trans_a ? p.m : p.k, rows_b = p.trans_b ? p.k : p.n;
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.batch < 1 || p.lda < rows_a || p.ldb < rows_b || p.ldc < p.n) {
    throw InternalError("[gemm] no product that cuBLASLt would take");
  }
  dispatch_compute(p.dtype, [&](auto tag) {
    using C = decltype(tag);
    launch("gemm", {.x = ceil_div(p.m * p.n, 32), .y = p.batch}, 32, 0, gemm_kernel<C>, p,
           Input<C>(ref_of(p.a, p.dtype)), Input<C>(ref_of(p.b, p.dtype)), Input<C>(ref_of(p.bias, p.out_dtype)),
           Input<C>(ref_of(p.addend, p.out_dtype)), Output<C>(ref_of(p.c, p.out_dtype)));
  });
}

}  // namespace polygrad::cuda
