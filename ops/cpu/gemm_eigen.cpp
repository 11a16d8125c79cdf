// The Eigen provider: its general matrix product in the calling thread. The namespace Eigen is renamed on the command
// line (to polygrad_eigen), so that a host program's Eigen, of another version or instruction set, never meets ours.
#ifndef EIGEN_DONT_PARALLELIZE
#define EIGEN_DONT_PARALLELIZE
#endif
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes its own AVX-512 intrinsics, inlined into Eigen's kernels, for reads of uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <Eigen/Core>

#include "ops/cpu/gemm.h"

namespace polygrad::cpu {
namespace {

// A transposed row-major matrix is a column-major one: no copy, the other storage order.
template <class T, bool kTransposed>
using Operand =
    Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, kTransposed ? Eigen::ColMajor : Eigen::RowMajor>,
               Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T>
using Result = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, Eigen::Unaligned,
                          Eigen::OuterStride<>>;

template <class T, bool kTransA, bool kTransB>
void product(std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a, std::int64_t lda, const T* b,
             std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  const Operand<T, kTransA> left(a, m, k, Eigen::OuterStride<>(lda));
  const Operand<T, kTransB> right(b, k, n, Eigen::OuterStride<>(ldb));
  Result<T> result(c, m, n, Eigen::OuterStride<>(ldc));
  if (beta == T(0)) {
    result.noalias() = alpha * left * right;
    return;
  }
  if (beta != T(1)) result *= beta;
  result.noalias() += alpha * left * right;
}

}  // namespace

template <class T>
void eigen_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  if (trans_a && trans_b) return product<T, true, true>(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (trans_a) return product<T, true, false>(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (trans_b) return product<T, false, true>(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  product<T, false, false>(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template void eigen_gemm<float>(bool, bool, std::int64_t, std::int64_t, std::int64_t, float, const float*, std::int64_t,
                                const float*, std::int64_t, float, float*, std::int64_t);
template void eigen_gemm<double>(bool, bool, std::int64_t, std::int64_t, std::int64_t, double, const double*,
                                 std::int64_t, const double*, std::int64_t, double, double*, std::int64_t);

}  // namespace polygrad::cpu
