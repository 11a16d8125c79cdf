// Rows in blocks: how the fused kernels of the pre_norm family cut their work, and what they do with a block.
//
// Where this stands: below ops/cpu/pre_norm*.cpp. A block of rows goes through all steps of an op while it is in the
// cache. For gradients of parameters, consecutive blocks form a group: a task does one group and sums into the group's
// own buffer, and the groups are added in order. The plan depends on the shape alone, so results have the same bits
// for any number of threads.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"
#include "engine/workspace.h"
#include "ops/kernels/pre_norm.h"

namespace polygrad::cpu {

struct RowRange {
  std::int64_t begin, count;
};

struct RowPlan {
  std::int64_t rows, block, blocks, groups;

  // Rows of the largest block: what a buffer has to hold.
  POLYGRAD_INLINE std::int64_t largest_block() const {
    const std::int64_t last = blocks == 0 ? 0 : rows - (blocks - 1) * block;
    return blocks > 1 && last < block ? block : last;
  }
  POLYGRAD_INLINE RowRange rows_of(std::int64_t index) const {
    const std::int64_t begin = index * block;
    return {begin, index + 1 == blocks ? rows - begin : block};
  }
  // Blocks [first_block(g), first_block(g + 1)) are group g's.
  POLYGRAD_INLINE std::int64_t first_block(std::int64_t group) const { return blocks * group / groups; }
};
// A pure function. `width`: the elements of a row that are alive in a block at once. A block is as large as fits into a
// typical L2 cache, between 64 and 256 rows; a remainder under 16 rows joins its neighbour. A group has about 512 rows,
// and there are at most 16.
#if defined(__GNUC__)
__attribute__((visibility("default")))  // for its test, also against a shared library
#endif
RowPlan
plan_rows(std::int64_t rows, std::int64_t width);

// A weight (out, in) for products x weightᵀ with blocks of rows. It is turned once where there are rows enough: a
// product that reads it by rows is about 7 % faster than one that turns it while packing.
template <class T>
class TurnedWeight {
 public:
  TurnedWeight(Workspace& workspace, const TensorRef& weight, const RowPlan& plan);
  // y (rows, out) = x (rows, in) weightᵀ
  void multiply(std::int64_t rows, const T* x, T* y) const;

 private:
  const T* weight_;
  std::int64_t in_, out_;
  bool turned_;
};

// normalised (rows, D) = norm of these rows of x; writes their mean and rstd.
template <class T>
void normalise_block(const RowNorm& norm, RowRange rows, T* normalised);
// The same from mean and rstd.
template <class T>
void normalise_block_again(const RowNorm& norm, RowRange rows, T* normalised);

// Sums over the groups of a gradient, element by element: group 0 writes the result itself, the others buffers of
// their own.
template <class T>
class GroupSums {
 public:
  GroupSums(Workspace& workspace, const TensorRef& result, std::int64_t groups);
  POLYGRAD_INLINE bool wanted() const { return result_ != nullptr; }
  POLYGRAD_INLINE T* of(std::int64_t group) const { return group == 0 ? result_ : parts_ + (group - 1) * numel_; }
  // The result, once every group has written its buffer; zeros where there were no rows.
  void add_up(bool no_rows) const;

 private:
  T* result_ = nullptr;
  T* parts_ = nullptr;
  std::int64_t numel_ = 0, groups_ = 1;
};

// The same for a vector's gradient: f64 sums of each group, started at 0. `summed`: they are there even if the result
// is absent.
template <class T>
class GroupVectorSums {
 public:
  GroupVectorSums(Workspace& workspace, const TensorRef& result, std::int64_t size, std::int64_t groups,
                  bool summed = false);
  POLYGRAD_INLINE double* of(std::int64_t group) const { return sums_ == nullptr ? nullptr : sums_ + group * size_; }
  void add_up() const;

 private:
  T* result_ = nullptr;
  double* sums_ = nullptr;
  std::int64_t size_ = 0, groups_ = 1;
};

// The gradient of a norm, block by block, its parameters' in groups.
template <class T>
class NormBackward {
 public:
  NormBackward(Workspace& workspace, const RowNorm& norm, const RowNormGradients& gradients, const RowPlan& plan);
  bool wanted() const;
  // upper (rows, D): the gradient of norm(x); add, where given, is added to that of x.
  void run(std::int64_t group, RowRange rows, const T* upper, const T* add) const;
  void add_up() const;

 private:
  const RowNorm& norm_;
  T* grad_x_;
  GroupVectorSums<T> weight_sums_, bias_sums_;
};

// sums[j] += Σ_i x[i][j] over (rows, cols): each block in T, blocks in f64; scratch: cols elements. Nothing where
// sums is null.
template <class T>
void add_column_sums(const T* x, std::int64_t rows, std::int64_t cols, double* sums, T* scratch);

// The same of bf16 rows.
void add_column_sums(const BFloat16* x, std::int64_t rows, std::int64_t cols, double* sums, float* scratch);

// sum = row + bias, bias may be null; sum may be row.
template <class T>
void add_bias_row(const T* row, const T* bias, std::int64_t cols, T* sum);

// factors[b], one for each sample: what drop path multiplies its branch by. Null where every factor is 1.
template <class T>
T* branch_factors(Workspace& workspace, const BranchScale& scale, std::int64_t rows);

// y = residual + factor · (branch + bias), row by row; factors null: 1. y may be branch.
template <class T>
void add_branch(const T* residual, const T* branch, const T* bias, const T* factors, const BranchScale& scale,
                RowRange rows, std::int64_t cols, T* y);

// g times its sample's factor: g itself where factors is null, else in `buffer`.
template <class T>
const T* scaled_gradient(const T* g, const T* factors, const BranchScale& scale, RowRange rows, std::int64_t cols,
                         T* buffer);

}  // namespace polygrad::cpu
