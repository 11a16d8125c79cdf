// The softmax of rows that may arrive in pieces: the one φ that is not elementwise.
//
// Where this stands: below the paths, beside attention_block.h. A row is softmax(s)_j = e^(s_j - m) / Σ_k e^(s_k - m)
// with m its maximum; where the row comes tile by tile, m grows, and what was summed before is scaled by e^(m_old -
// m_new). Hidden pairs come in as -infinity, and leave as exactly 0; a row of nothing else has sum 0.
// Each function is one sweep over a row that lies in the first-level cache.
#pragma once

#include <cstdint>

namespace polygrad::cpu::attention {

template <class T>
T row_maximum(const T* s, std::int64_t n, T at_least);
template <class T>
T row_sum(const T* s, std::int64_t n);
template <class T>
T row_product(const T* a, const T* b, std::int64_t n);  // Σ a_j b_j

// s <- e^(s - maximum) · factor for one row. A maximum of -infinity (nothing but hidden pairs) gives zeros.
template <class T>
void exponentiate(T* s, std::int64_t n, T maximum, T factor);

// What is known of a row after some of its columns: start with {-infinity, 0}.
template <class T>
struct RowState {
  T maximum, sum;
};
// The row's next columns: s <- e^(s - maximum), the maximum being that of all columns so far. Returns what the row's
// earlier results must be multiplied by (0 for the first columns).
template <class T>
T softmax_next(T* s, std::int64_t n, RowState<T>& row);

// Gradient of a normalised row p: ds_j = p_j (dp_j - inner), inner = Σ_j p_j dp_j.
template <class T>
void softmax_gradient_row(const T* p, T* dp, std::int64_t n, T inner);
// Both sweeps in one, where inner is known beforehand: s <- p = e^(s - maximum) · inverse_sum, and the gradient.
template <class T>
void softmax_gradient_row(T* s, T* dp, std::int64_t n, T maximum, T inverse_sum, T inner);

}  // namespace polygrad::cpu::attention
