// The visible tokens of a head, and the dense rows that a path computes with in their place.
//
// Where this stands: below the paths. A mask is looked at once: what it hides is left out of every loop from there on,
// so work follows the masks, and a NaN in a hidden row is never read. Rows are copied together ("gathered") with zeros
// up to whole vectors, and results are written back to where their tokens stand ("scattered").
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "ops/cpu/attention_plan.h"
#include "ops/kernels/attention.h"

namespace polygrad::cpu::attention {

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

// --- which tokens ---------------------------------------------------------------------------------------------------

POLYGRAD_INLINE const bool* key_mask_of(const AttentionProblem& p, std::int64_t b) {
  return p.key_mask.present() ? static_cast<const bool*>(p.key_mask.data) + b * p.k.sizes[2] : nullptr;
}
POLYGRAD_INLINE const bool* query_mask_of(const AttentionProblem& p, std::int64_t b) {
  return p.query_mask.present() ? static_cast<const bool*>(p.query_mask.data) + b * p.q.sizes[2] : nullptr;
}
// [begin, end) without the hidden entries at its two ends. A null mask hides nothing.
Range trim(const bool* mask, Range range);

// Some tokens in ascending order: a run without holes, or a list.
struct Tokens {
  std::int64_t count = 0;
  std::int64_t first = 0;               // of a run
  const std::int32_t* index = nullptr;  // of a list

  POLYGRAD_INLINE std::int64_t at(std::int64_t i) const { return index != nullptr ? index[i] : first + i; }
  POLYGRAD_INLINE Tokens part(Range range) const {
    return {range.count(), first + range.begin, index != nullptr ? index + range.begin : nullptr};
  }
  // Calls f(position, token, count) for the longest runs, cut after `most` tokens.
  template <class F>
  POLYGRAD_INLINE void for_runs(std::int64_t most, const F& f) const {
    for (std::int64_t i = 0; i < count;) {
      std::int64_t end = i + 1;
      if (index == nullptr) {
        end = count - i < most ? count : i + most;
      } else {
        while (end < count && end - i < most && index[end] == index[end - 1] + 1) ++end;
      }
      f(i, at(i), end - i);
      i = end;
    }
  }
};
POLYGRAD_INLINE Tokens run_of_tokens(Range range) { return {range.count(), range.begin, nullptr}; }
// Those of `range` that the mask shows. A list is written to `list`, which has room for as many.
Tokens visible_tokens(const bool* mask, Range range, std::int32_t* list);

// --- dense rows -----------------------------------------------------------------------------------------------------

// to (padded(count), padded(width)) = factor · the tokens' rows, zero where padded.
template <class T>
void gather_rows(const Rows<const T>& rows, const Tokens& tokens, std::int64_t width, T factor, T* to);

// The tokens' rows = factor · from; from (count, padded(width)).
template <class T>
void scatter_rows(const T* from, const Tokens& tokens, std::int64_t width, T factor, const Rows<T>& rows);

// Asks the cache for the tokens' rows before they are read or written.
enum class Access { read, write };
template <Access kAccess, class T>
POLYGRAD_INLINE void prefetch_rows(const Rows<T>& rows, const Tokens& tokens, std::int64_t width) {
  constexpr std::int64_t kStep = 64 / sizeof(T);
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    const T* row = rows.at(tokens.at(i));
    for (std::int64_t e = 0; e < width; e += kStep) __builtin_prefetch(row + e, kAccess == Access::write ? 1 : 0, 2);
  }
}

template <class T>
void fill_rows(const Rows<T>& rows, const Tokens& tokens, std::int64_t width, T value);

}  // namespace polygrad::cpu::attention
