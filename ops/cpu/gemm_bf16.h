// Products of bf16 matrices in the calling thread: the operands rounded to bf16, every sum in f32.
//
// Where this stands: beside gemm_serial of ops/cpu/gemm.h, whose conventions these share (row-major, leading
// dimensions, sizes of 0, beta = 0 overwrites). They need oneDNN and a CPU with bf16 units (ops/precision.h says where
// they can't run; here that is an error of the program).
// How it works: oneDNN's matmul primitive. A primitive is compiled for one shape with its strides, so each thread keeps
// those it has used, at most kPrimitives of them; a call costs about half a microsecond above the product itself.
// Read next: gemm_bf16.cpp.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"

// The bench and the tests call these from outside a shared library too, where ops/cpu is hidden otherwise.
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

namespace polygrad::cpu {

// Whether this build has oneDNN and this CPU the units (avx512_bf16 or amx_bf16).
bool has_bf16_units();

// Rounds n elements of a row to nearest, as round_to_bfloat16 of engine/bfloat16.h, with the CPU's own instruction
// where it has one; that one makes denormals 0, which products do anyway.
void round_row(const float* from, BFloat16* to, std::int64_t n);

// C = alpha * op(A) * op(B) + beta * C.
void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                 const BFloat16* a, std::int64_t lda, const BFloat16* b, std::int64_t ldb, float beta, float* c,
                 std::int64_t ldc);
// C = op(A) * op(B) + bias, rounded once. bias (n) may be null.
void gemm_serial(bool trans_a, bool trans_b, std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a,
                 std::int64_t lda, const BFloat16* b, std::int64_t ldb, const float* bias, BFloat16* c,
                 std::int64_t ldc);

// --- a right-hand matrix that many products use: a weight ----------------------------------------------------------

// Rounds op(B) (k, n) and puts its k·n elements in the order that oneDNN's kernels read (one order for each k and n,
// whatever the other matrices are). It saves 3 to 5 % of each product. k, n > 0.
void pack_bf16(bool trans_b, std::int64_t n, std::int64_t k, const float* b, std::int64_t ldb, BFloat16* packed);

// C = A * B + bias + beta * C for a packed B. bias (n) may be null.
void gemm_packed_serial(std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a, std::int64_t lda,
                        const BFloat16* packed, const float* bias, float beta, float* c, std::int64_t ldc);
// The same with beta = 0, rounded once.
void gemm_packed_serial(std::int64_t m, std::int64_t n, std::int64_t k, const BFloat16* a, std::int64_t lda,
                        const BFloat16* packed, const float* bias, BFloat16* c, std::int64_t ldc);

}  // namespace polygrad::cpu

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
