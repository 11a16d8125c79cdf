// The products of attention's tiles: small factors that lie in the cache, and no copy made of them for each product.
//
// Where this stands: below the tiled path (attention_tiled.h). ops/cpu/gemm.h is the door of every other product. Here
// its providers would copy both factors again for each tile, although a tile's keys serve a hundred rows; for K = d =
// 32 to 64 that copying, and what remains of a row length like 257, cost up to a tenth.
// How it works: the left factor is read one number at a time and held against two vectors of the right factor; eight
// rows of results stay in registers until their sum over k is complete. Left factors may lie in memory either way;
// right factors must have their columns side by side, in rows that are padded to whole vectors. Only the scores need a
// factor turned for that (transpose_rows), once a tile. Each element is one chain of fused multiply-adds over k, in
// order. Everything runs in the calling thread.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"

namespace polygrad::cpu::attention {

// Padded rows have a multiple of this many elements: a cache line, and a vector of the widest instruction set.
template <class T>
inline constexpr std::int64_t kLine = 64 / sizeof(T);
template <class T>
POLYGRAD_INLINE std::int64_t padded(std::int64_t n) {
  return (n + kLine<T> - 1) / kLine<T> * kLine<T>;
}
// A right factor made by transpose_rows lies in panels of this many columns, each (padded(k), kPanelCols) by itself.
template <class T>
inline constexpr std::int64_t kPanelCols = 2 * kLine<T>;

// rows (padded(count), padded(width)), zero where padded, becomes the right factor rowsᵀ (width, count) in panels: as
// many elements as count, rounded up to whole panels, times padded(width).
template <class T>
void transpose_rows(const T* rows, std::int64_t count, std::int64_t width, T* panels);

// C (m, n) = A B with A (m, k) and B (k, n) in panels, `panels` being the first whose columns are wanted. Writes
// padded(n) columns of each row of C.
template <class T>
void multiply_panels(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* panels,
                     T* c, std::int64_t ldc);

// C (m, n) = A B, or += A B, with A (m, k), and B (k, n) and C in padded rows of padded(n) elements.
template <class T>
void multiply_rows(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b, bool add,
                   T* c);

// C (m, n) += Aᵀ B with A (k, m), and B (k, n) and C in padded rows of padded(n) elements.
template <class T>
void add_transposed_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                            T* c);

}  // namespace polygrad::cpu::attention
