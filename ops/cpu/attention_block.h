// What the paths do with a block of scores: fill it, map it by φ, hide pairs, drop entries.
//
// Where this stands: below the paths (attention_tiled.cpp, attention_materialised.cpp, attention_norms.cpp). A block is
// a contiguous (rows, cols) buffer that stands for a rectangle of one head's matrix. Everything here runs in the
// calling thread, for T = float and double. Read next: attention_tiled.cpp.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "ops/cpu/attention_plan.h"
#include "ops/kernels/attention.h"

namespace polygrad::cpu::attention {

// Rows [row, row + rows) and columns [col, col + cols) of batch b's head h.
struct Block {
  std::int64_t b, h;
  std::int64_t row, rows;
  std::int64_t col, cols;
};

// One head's rows in a (B, H, N, d) tensor: unit stride within a row.
template <class T>
struct Rows {
  T* data = nullptr;  // null for an absent tensor
  std::int64_t stride = 0;
  POLYGRAD_INLINE T* at(std::int64_t i) const { return data + i * stride; }
  POLYGRAD_INLINE bool present() const { return data != nullptr; }
};
template <class T>
POLYGRAD_INLINE Rows<T> head_rows(const TensorRef& ref, std::int64_t b, std::int64_t h) {
  if (!ref.present()) return {};
  return {static_cast<T*>(ref.data) + b * ref.strides[0] + h * ref.strides[1], ref.strides[2]};
}

// The sizes of a problem, by name.
struct Sizes {
  std::int64_t batch, heads, queries, keys, head_dim;
  POLYGRAD_INLINE explicit Sizes(const AttentionProblem& p)
      : batch(p.q.sizes[0]), heads(p.q.sizes[1]), queries(p.q.sizes[2]), keys(p.k.sizes[2]), head_dim(p.q.sizes[3]) {}
};

// --- masks ----------------------------------------------------------------------------------------------------------

POLYGRAD_INLINE const bool* key_mask_of(const AttentionProblem& p, std::int64_t b) {
  return p.key_mask.present() ? static_cast<const bool*>(p.key_mask.data) + b * p.k.sizes[2] : nullptr;
}
POLYGRAD_INLINE const bool* query_mask_of(const AttentionProblem& p, std::int64_t b) {
  return p.query_mask.present() ? static_cast<const bool*>(p.query_mask.data) + b * p.q.sizes[2] : nullptr;
}
POLYGRAD_INLINE bool hides_pairs(const AttentionProblem& p) {
  return p.key_mask.present() || p.query_mask.present() || p.regions.present();
}
// [begin, end) without the hidden entries at its two ends: padding is never computed. A null mask hides nothing.
Range trim(const bool* mask, Range range);

// Entries of `a` (and `b`, where given) whose pair is hidden become `value`, whatever they were.
template <class T>
void hide_pairs(const AttentionProblem& problem, const Block& block, T value, T* a, T* b = nullptr);

// Multiplies the entries by their dropout factor, 0 or 65536 / (65536 - threshold).
template <class T>
void drop_entries(const AttentionProblem& problem, const Block& block, T* a, T* b = nullptr);

// --- scores and φ ---------------------------------------------------------------------------------------------------

// s = score_scale · q kᵀ (+ bias).
template <class T>
void compute_scores(const AttentionProblem& problem, const Block& block, T* s);

// The loops of one elementwise φ over n entries.
template <class T>
struct PhiLoops {
  void (*value)(T* s, std::int64_t n);            // s <- φ(s)
  void (*gradient)(T* s, T* dp, std::int64_t n);  // dp <- dp·φ'(s), s <- φ(s)
};
template <class T>
const PhiLoops<T>& phi_loops(std::int32_t phi);

template <class T>
void fill_rows(const Rows<T>& rows, Range range, std::int64_t width, T value);

}  // namespace polygrad::cpu::attention
