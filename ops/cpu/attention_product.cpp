#include "ops/cpu/attention_product.h"

#include <cstring>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include "engine/profile_hooks.h"

namespace polygrad::cpu::attention {
namespace {

// --- vectors of this instruction set --------------------------------------------------------------------------------

// The rows and vectors of results that are kept in registers: rows x 2, with two vectors of the right factor and one
// number of the left beside them. AVX-512 has 32 registers, the others 16.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kBlockRows = 8;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kVectorBytes = 32, kBlockRows = 6;
#else
constexpr int kVectorBytes = 16, kBlockRows = 4;
#endif

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  using Type = float __attribute__((vector_size(kVectorBytes)));
  using Index = std::int32_t __attribute__((vector_size(kVectorBytes)));
};
template <>
struct VectorOf<double> {
  using Type = double __attribute__((vector_size(kVectorBytes)));
  using Index = std::int64_t __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;
template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <class T>
POLYGRAD_INLINE Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
POLYGRAD_INLINE void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof v);
}
template <class T>
POLYGRAD_INLINE Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}

// a·b + c, as math::fma: rounded once where the target has the instruction.
#if defined(__AVX512F__)
POLYGRAD_INLINE Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
  return _mm512_fmadd_ps(a, b, c);
}
POLYGRAD_INLINE Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
  return _mm512_fmadd_pd(a, b, c);
}
#elif defined(__AVX2__) && defined(__FMA__)
POLYGRAD_INLINE Vector<float> multiply_add(Vector<float> a, Vector<float> b, Vector<float> c) {
  return _mm256_fmadd_ps(a, b, c);
}
POLYGRAD_INLINE Vector<double> multiply_add(Vector<double> a, Vector<double> b, Vector<double> c) {
  return _mm256_fmadd_pd(a, b, c);
}
#else
template <class V>
POLYGRAD_INLINE V multiply_add(V a, V b, V c) {
  return a * b + c;
}
#endif

// --- the block ------------------------------------------------------------------------------------------------------

// What a product does with its left factor A and with what stands in C.
struct Assign {
  static constexpr bool kTransposed = false, kAdd = false;
};
struct Add {
  static constexpr bool kTransposed = false, kAdd = true;
};
struct AddTransposed {
  static constexpr bool kTransposed = true, kAdd = true;
};

// kRows x kVectors vectors of C.
template <class T, int kRows, int kVectors, class Kind>
POLYGRAD_INLINE void multiply_block(std::int64_t k, const T* __restrict a, std::int64_t lda, const T* __restrict b,
                                    std::int64_t ldb, T* __restrict c, std::int64_t ldc) {
  Vector<T> sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Vector<T>{};
  }
#pragma GCC unroll 1
  for (std::int64_t e = 0; e < k; ++e) {
    Vector<T> right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + e * ldb + v * kLanes<T>);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Vector<T> left = broadcast(Kind::kTransposed ? a[e * lda + i] : a[i * lda + e]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][v] = multiply_add(left, right[v], sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      T* to = c + i * ldc + v * kLanes<T>;
      store(to, Kind::kAdd ? load(to) + sums[i][v] : sums[i][v]);
    }
  }
}

// The blocks of kRows rows beginning at row i; returns the first row that is left.
template <class T, int kRows, int kVectors, class Kind>
POLYGRAD_INLINE std::int64_t multiply_blocks(std::int64_t i, std::int64_t m, std::int64_t k, const T* a,
                                             std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc) {
  for (; i + kRows <= m; i += kRows) {
    multiply_block<T, kRows, kVectors, Kind>(k, a + i * (Kind::kTransposed ? 1 : lda), lda, b, ldb, c + i * ldc, ldc);
  }
  return i;
}

// All rows of kVectors vectors of columns.
template <class T, int kVectors, class Kind>
void multiply_strip(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* c,
                    std::int64_t ldc) {
  std::int64_t i = multiply_blocks<T, kBlockRows, kVectors, Kind>(0, m, k, a, lda, b, ldb, c, ldc);
  if constexpr (kBlockRows > 4) i = multiply_blocks<T, 4, kVectors, Kind>(i, m, k, a, lda, b, ldb, c, ldc);
  i = multiply_blocks<T, 2, kVectors, Kind>(i, m, k, a, lda, b, ldb, c, ldc);
  multiply_blocks<T, 1, kVectors, Kind>(i, m, k, a, lda, b, ldb, c, ldc);
}

// `cols` columns, whole vectors.
template <class T, class Kind>
POLYGRAD_INLINE void multiply_columns(std::int64_t m, std::int64_t cols, std::int64_t k, const T* a, std::int64_t lda,
                                      const T* b, std::int64_t ldb, T* c, std::int64_t ldc) {
  std::int64_t j = 0;
  for (; j + 2 * kLanes<T> <= cols; j += 2 * kLanes<T>) {
    multiply_strip<T, 2, Kind>(m, k, a, lda, b + j, ldb, c + j, ldc);
  }
  if (j < cols) multiply_strip<T, 1, Kind>(m, k, a, lda, b + j, ldb, c + j, ldc);
}

// --- turning a factor -----------------------------------------------------------------------------------------------

// a[0] b[0] a[1] b[1] ... : the first or the second half of it.
template <class T>
POLYGRAD_INLINE Vector<T> interleave(Vector<T> a, Vector<T> b, bool second_half) {
  using Index = typename VectorOf<T>::Index;
  Index from = {};
#pragma GCC unroll 16
  for (int l = 0; l < kLanes<T>; ++l) from[l] = (second_half ? kLanes<T> / 2 : 0) + l / 2 + l % 2 * kLanes<T>;
#if defined(__clang__)
  Vector<T> result = {};
  for (int l = 0; l < kLanes<T>; ++l) result[l] = from[l] < kLanes<T> ? a[from[l]] : b[from[l] - kLanes<T>];
  return result;
#else
  return __builtin_shuffle(a, b, from);
#endif
}

// A square of kLanes x kLanes elements. Interleaving row i with row i + kLanes / 2 moves the highest bit of the row's
// number to the lowest place of the column's; after as many rounds as there are bits, rows and columns have changed
// places.
template <class T>
POLYGRAD_INLINE void transpose_square(const T* from, std::int64_t ld_from, T* to, std::int64_t ld_to) {
  Vector<T> rows[kLanes<T>], next[kLanes<T>];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) rows[i] = load(from + i * ld_from);
#pragma GCC unroll 4
  for (int round = 1; round < kLanes<T>; round *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      next[i] = interleave<T>(rows[i / 2], rows[i / 2 + kLanes<T> / 2], i % 2 != 0);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) store(to + i * ld_to, rows[i]);
}

}  // namespace

template <class T>
void transpose_rows(const T* rows, std::int64_t count, std::int64_t width, T* panels) {
  const std::int64_t cols = padded<T>(count), depth = padded<T>(width);
  for (std::int64_t col = 0; col < cols; col += kPanelCols<T>) {
    T* panel = panels + col * depth;
    for (std::int64_t j = 0; j < kPanelCols<T> && col + j < cols; j += kLanes<T>) {
      for (std::int64_t e = 0; e < depth; e += kLanes<T>) {
        transpose_square(rows + (col + j) * depth + e, depth, panel + e * kPanelCols<T> + j, kPanelCols<T>);
      }
    }
  }
}

template <class T>
void multiply_panels(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* panels,
                     T* c, std::int64_t ldc) {
  const std::int64_t start = detail::product_begins();
  const std::int64_t cols = padded<T>(n), depth = padded<T>(k);
  for (std::int64_t col = 0; col < cols; col += kPanelCols<T>) {
    const std::int64_t wanted = cols - col < kPanelCols<T> ? cols - col : kPanelCols<T>;
    multiply_columns<T, Assign>(m, wanted, k, a, lda, panels + col * depth, kPanelCols<T>, c + col, ldc);
  }
  detail::product_ends(start, m * n * k);
}

template <class T>
void multiply_rows(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b, bool add,
                   T* c) {
  const std::int64_t start = detail::product_begins();
  const std::int64_t cols = padded<T>(n);
  if (add) {
    multiply_columns<T, Add>(m, cols, k, a, lda, b, cols, c, cols);
  } else {
    multiply_columns<T, Assign>(m, cols, k, a, lda, b, cols, c, cols);
  }
  detail::product_ends(start, m * n * k);
}

template <class T>
void add_transposed_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                            T* c) {
  const std::int64_t start = detail::product_begins();
  const std::int64_t cols = padded<T>(n);
  multiply_columns<T, AddTransposed>(m, cols, k, a, lda, b, cols, c, cols);
  detail::product_ends(start, m * n * k);
}

#define POLYGRAD_INSTANTIATE(T)                                                                                       \
  template void transpose_rows<T>(const T*, std::int64_t, std::int64_t, T*);                                          \
  template void multiply_panels<T>(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, T*,    \
                                   std::int64_t);                                                                     \
  template void multiply_rows<T>(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, bool,    \
                                 T*);                                                                                 \
  template void add_transposed_product<T>(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, \
                                          T*);
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
#undef POLYGRAD_INSTANTIATE

}  // namespace polygrad::cpu::attention
