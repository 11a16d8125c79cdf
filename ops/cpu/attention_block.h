// What the paths do with a block of scores: fill it, map it by φ, hide pairs, drop entries.
//
// Where this stands: below the paths (attention_tiled.h, attention_materialised.cpp, attention_norms.cpp). A block is a
// buffer that stands for a rectangle of one head's matrix, or for the pairs of some of its tokens. Everything here runs
// in the calling thread, for T = float and double. Read next: attention_tiled.h.
#pragma once

#include <cstdint>

#include "ops/cpu/attention_tokens.h"
#include "ops/kernels/attention.h"

namespace polygrad::cpu::attention {

// The sizes of a problem, by name.
struct Sizes {
  std::int64_t batch, heads, queries, keys, head_dim;
  POLYGRAD_INLINE explicit Sizes(const AttentionProblem& p)
      : batch(p.q.sizes[0]), heads(p.q.sizes[1]), queries(p.q.sizes[2]), keys(p.k.sizes[2]), head_dim(p.q.sizes[3]) {}
};

// Rows [row, row + rows) and columns [col, col + cols) of batch b's head h, as a contiguous (rows, cols) buffer.
struct Block {
  std::int64_t b, h;
  std::int64_t row, rows;
  std::int64_t col, cols;
};

// Pairs of some queries and some keys of batch b's head h, as a buffer whose rows are `stride` apart.
struct Pairs {
  std::int64_t b, h;
  Tokens rows, cols;
  std::int64_t stride;
  POLYGRAD_INLINE Pairs(std::int64_t b_, std::int64_t h_, const Tokens& rows_, const Tokens& cols_,
                        std::int64_t stride_)
      : b(b_), h(h_), rows(rows_), cols(cols_), stride(stride_) {}
  POLYGRAD_INLINE Pairs(const Block& block)  // NOLINT: implicit, a block is one kind of them
      : Pairs(block.b, block.h, run_of_tokens({block.row, block.row + block.rows}),
              run_of_tokens({block.col, block.col + block.cols}), block.cols) {}
};

// --- masks ----------------------------------------------------------------------------------------------------------

// Entries of `a` (and `b`, where given) whose pair is hidden become `value`, whatever they were.
template <class T>
void hide_pairs(const AttentionProblem& problem, const Pairs& pairs, T value, T* a, T* b = nullptr);

// Of the positions in `cols`, from the first to the last that some row may see by `regions`; all without regions.
Range columns_in_reach(const AttentionProblem& problem, std::int64_t b, const Tokens& rows, const Tokens& cols);

// Multiplies the entries by their dropout factor, 0 or 65536 / (65536 - threshold).
template <class T>
void drop_entries(const AttentionProblem& problem, const Pairs& pairs, T* a, T* b = nullptr);

// Adds the bias, where there is one.
template <class T>
void add_bias(const AttentionProblem& problem, const Pairs& pairs, T* s);

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

}  // namespace polygrad::cpu::attention
