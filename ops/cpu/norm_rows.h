// Layer norm over a block of rows: the loops of ops/cpu/norm.cpp, for kernels that fuse it with what comes next.
//
// Where this stands: below norm.cpp and the fused kernels. Everything here runs in the calling thread, for T = float
// and double. Rows are contiguous, n elements each; weight and bias (n) may be null. mean and rstd are f64, one a row.
// A row of f32 is centred with its mean in two parts, so that a mean far larger than the spread costs nothing, and is
// summed in f32 only over a few elements a lane, then in f64. The bits of a row depend on that row alone.
#pragma once

#include <cstdint>

namespace polygrad::cpu {

// y = (x - mean)·rstd·weight + bias, rstd = 1/sqrt(var + eps). Writes mean and rstd. y may be x's memory.
template <class T>
void layer_norm_rows(const T* x, std::int64_t rows, std::int64_t n, const T* weight, const T* bias, double eps, T* y,
                     double* mean, double* rstd);

// The same y from a mean and rstd that are known: what a backward recomputes.
template <class T>
void layer_norm_rows_again(const T* x, std::int64_t rows, std::int64_t n, const T* weight, const T* bias,
                           const double* mean, const double* rstd, T* y);

// dx = rstd·(h - mean(h) - x̂·mean(h·x̂)), h = g·weight, x̂ = (x - mean)·rstd; plus `add` (rows, n) where given: the
// gradient that reaches x by another way (a residual). dweight += Σ g·x̂ and dbias += Σ g over the rows: both
// given, or both null. dx may be null, and may be the memory of g, x or add.
template <class T>
void layer_norm_rows_backward(const T* g, const T* x, std::int64_t rows, std::int64_t n, const T* weight,
                              const double* mean, const double* rstd, const T* add, T* dx, double* dweight,
                              double* dbias);

}  // namespace polygrad::cpu
