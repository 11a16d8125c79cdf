// Matrix products on the CPU: one interface, two providers (oneDNN and Eigen), one plan.
//
// Where this stands: below ops/cpu/matmul.cpp and ops/cpu/attention.cpp; nothing else of the library multiplies
// matrices. Everything is row-major. gemm() cuts a product into blocks and runs them on the pool; gemm_serial() is one
// product in the calling thread, for kernels that cut the work themselves.
// How it works: plan_gemm() decides the blocks from the shape alone, so a result has the same bits for any number of
// threads. A block is one call of a provider, followed by the epilogue while the block is in the cache.
// Read next: gemm.cpp (plan and blocks), gemm_onednn.cpp, gemm_eigen.cpp (the providers).
#pragma once

#include <cstdint>

#include "engine/dtype.h"
#include "engine/workspace.h"

namespace polygrad::cpu {

// C = alpha * op(A) * op(B) + beta * C in the calling thread; op(A) is (m, k), op(B) is (k, n), C is (m, n). A leading
// dimension is the distance of two rows of the matrix as it lies in memory: A is (m, k), or (k, m) with trans_a.
// Any of m, n and k may be 0; beta = 0 overwrites C, also a NaN. float and double; float goes to the chosen provider
// (ops/gemm_provider.h), double to Eigen.
template <class T>
void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                 std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

}  // namespace polygrad::cpu
