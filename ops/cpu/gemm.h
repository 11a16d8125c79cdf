// Matrix products on the CPU: one interface, two providers (oneDNN and Eigen), one plan.
//
// Where this stands: below ops/cpu/matmul.cpp and ops/cpu/attention.cpp; nothing else of the library multiplies
// matrices. Everything is row-major. gemm() cuts a product into blocks and runs them on the pool; gemm_serial() is one
// product in the calling thread, for kernels that cut the work themselves (of bf16 matrices: gemm_bf16.h).
// How it works: plan_gemm() decides the blocks from the shape alone, so a result has the same bits for any number of
// threads. A block is one call of a provider, followed by the epilogue while the block is in the cache.
// Read next: gemm.cpp (plan and blocks), gemm_onednn.cpp, gemm_eigen.cpp, gemm_bf16.h (the providers).
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"

// The bench and the tests call these from outside a shared library too, where ops/cpu is hidden otherwise.
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

namespace polygrad::cpu {

// C = alpha * op(A) * op(B) + beta * C in the calling thread; op(A) is (m, k), op(B) is (k, n), C is (m, n). A leading
// dimension is the distance of two rows of the matrix as it lies in memory: A is (m, k), or (k, m) with trans_a.
// Any of m, n and k may be 0; beta = 0 overwrites C, also a NaN. float and double; float goes to the chosen provider
// (ops/gemm_provider.h), double to Eigen.
template <class T>
void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                 std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

// --- the plan -------------------------------------------------------------------------------------------------------

// How a product is cut: into blocks of C, and each block's sum over k into slices that are added in order. The last
// block or slice of each kind takes the remainder.
struct GemmPlan {
  std::int64_t row_block, row_blocks;
  std::int64_t col_block, col_blocks;
  std::int64_t k_slice, k_slices;
};
// A pure function. `batch` is the number of matrices C.
//  - Rows: blocks of about 256 (so that a block of C stays in the L2 cache), equal and multiples of 16; a remainder
//  under
//    16 joins its neighbour, because oneDNN changes to a slower kernel there.
//  - Columns: halved while there are fewer than 32 blocks and a half is still worth a task.
//  - k: clamp(32 / blocks, 1, k / 512) slices, or a weight gradient (192 x 192, k = 8224) would be one task.
GemmPlan plan_gemm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k);
// With a packed B, which can't be cut: blocks of rows alone, smaller ones (at least 32 rows) where there are few.
GemmPlan plan_gemm_packed(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k);

// --- a product on the pool ------------------------------------------------------------------------------------------

inline constexpr int kMaxGemmBatchDims = 6;

// What T is scaled and summed in.
template <class T>
struct GemmScale {
  using type = T;
};
template <>
struct GemmScale<BFloat16> {
  using type = float;
};

// T is float, double or BFloat16, and Out is T; or BFloat16 and float.
template <class T, class Out = T>
struct Gemm {
  using Scale = typename GemmScale<T>::type;
  bool trans_a = false, trans_b = false;
  bool packed_b = false;  // BFloat16 only: b is what pack_bf16 made, and trans_a false
  std::int64_t m = 0, n = 0, k = 0;
  Scale alpha = 1;
  const T* a = nullptr;
  std::int64_t lda = 1;
  const T* b = nullptr;
  std::int64_t ldb = 1;
  Scale beta = 0;  // 0 where Out is BFloat16
  Out* c = nullptr;
  std::int64_t ldc = 1;
  const float* bias = nullptr;  // (n), added before the one rounding, where Out is BFloat16; else the epilogue's task
  // The batch, outermost dimension first; strides in elements. Stride 0 in a or b: the same matrix for all. Stride 0 in
  // c: the products are summed into one matrix, in order.
  std::int32_t batch_dims = 0;
  std::int64_t batch_sizes[kMaxGemmBatchDims] = {};
  std::int64_t batch_a[kMaxGemmBatchDims] = {};
  std::int64_t batch_b[kMaxGemmBatchDims] = {};
  std::int64_t batch_c[kMaxGemmBatchDims] = {};
};

// A non-owning reference to void(offset, rows, cols, col): run on each finished block of C, whose first element is
// c[offset] and whose first column is column `col` of C.
class GemmEpilogue {
 public:
  GemmEpilogue() = default;
  template <class F>
  POLYGRAD_INLINE GemmEpilogue(const F& function)  // NOLINT: implicit, so that a lambda can be passed
      : object_(&function),
        call_([](const void* object, std::int64_t offset, std::int64_t rows, std::int64_t cols, std::int64_t col) {
          (*static_cast<const F*>(object))(offset, rows, cols, col);
        }) {}
  POLYGRAD_INLINE void operator()(std::int64_t offset, std::int64_t rows, std::int64_t cols, std::int64_t col) const {
    if (call_ != nullptr) call_(object_, offset, rows, cols, col);
  }

 private:
  const void* object_ = nullptr;
  void (*call_)(const void*, std::int64_t, std::int64_t, std::int64_t, std::int64_t) = nullptr;
};

// Runs the product on the pool by its plan. The matrices of C must not overlap (but for stride 0).
template <class T, class Out>
void gemm(Workspace& workspace, const Gemm<T, Out>& product, GemmEpilogue epilogue = {});

// --- the providers: as gemm_serial, with m, n and k > 0 -------------------------------------------------------------

// Calls oneDNN with its OpenMP threads set to 1 for this thread, and restores the caller's number. Throws where the
// build has no oneDNN.
void onednn_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc);
template <class T>
void eigen_gemm(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc);

// Throws InternalError, or OutOfMemoryError: a provider refused a product. Defined in ops/gemm_provider.cpp, because
// the files that call it are compiled for this machine alone and must emit no inline code of the library's.
[[noreturn]] void throw_gemm_failure(const char* provider, bool out_of_memory, int status, std::int64_t m,
                                     std::int64_t n, std::int64_t k);

}  // namespace polygrad::cpu

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
