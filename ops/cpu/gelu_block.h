// GELU over a block that lies in cache: what a fused kernel runs between two products.
//
// Where this stands: beside unary.cpp, with the same functor. Everything here runs in the calling thread, for T = float
// and double. An output may be the very memory of an input (in place), but may not overlap one otherwise.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"

namespace polygrad::cpu {

// y = gelu(pre)
template <class T>
void gelu_block(const T* pre, T* y, std::int64_t n);

// y = gelu(pre) and slope = gelu'(pre), from one evaluation of each part that they share.
template <class T>
void gelu_pair_block(const T* pre, T* y, T* slope, std::int64_t n);

// h = gelu(pre) and dpre = g·gelu'(pre): what the backward of a fused MLP recomputes and what it needs. h may be null.
template <class T>
void gelu_backward_block(const T* pre, const T* g, T* dpre, T* h, std::int64_t n);

// gelu_block and gelu_backward_block of bf16: computed in f32, each result rounded once.
void gelu_block(const BFloat16* pre, BFloat16* y, std::int64_t n);
void gelu_backward_block(const BFloat16* pre, const BFloat16* g, BFloat16* dpre, BFloat16* h, std::int64_t n);

}  // namespace polygrad::cpu
