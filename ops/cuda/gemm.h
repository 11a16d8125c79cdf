// The one door of matrix products on a GPU: C = op(A) op(B), with what cuBLASLt does on the way.
//
// Where this stands: below matmul.cu and pre_norm.cu. Implemented by gemm.cpp (cuBLASLt); the tests' CUDA runtime has a
// plain one of its own, so that what calls this is proven without a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "engine/dtype.h"
#include "engine/workspace.h"

namespace polygrad::cuda {

// All matrices are row-major. A is (m, k), or stored as (k, m) where trans_a; B is (k, n), or (n, k); C is (m, n). m, n
// and k >= 1. Sums are f32 for f32 and 16-bit factors, f64 for f64.
struct Gemm {
  DType dtype = DType::f32;      // of A and B
  DType out_dtype = DType::f32;  // of C, bias and addend: `dtype`, or f32 of 16-bit factors
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  const void *a = nullptr, *b = nullptr;
  void* c = nullptr;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  // A batch of products, these elements apart. Of A and B 0 repeats one matrix.
  std::int64_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  // C = alpha A B + bias + addend, each of the latter where it is not null.
  double alpha = 1;
  const void* bias = nullptr;    // (n)
  const void* addend = nullptr;  // laid out as C; may be C itself
};

// In the current stream. Deterministic: the algorithm depends on the shape, the layout and the alignment alone. Throws
// CudaError naming call, status and shapes.
void gemm(Workspace& workspace, const Gemm& product);

// For what can't be done on the way: c += bias, (m, n) with rows ldc apart. In matmul.cu.
void add_bias(const Gemm& product);

// "bf16 (8, 16) x (16, 4) -> f32, batch 3".
std::string describe(const Gemm& product);

}  // namespace polygrad::cuda
