// Walk: how kOperands tensors of one shape, of any strides, are stepped through together.
//
// Where this stands: made on the host, passed to kernels by value. Dimensions of size 1 are dropped, and neighbours
// that all operands step through as through one are merged, so nearly all walks have one or two. Read next: block.h.
// Internal: not installed.
#pragma once

#include <cstdint>

#include "engine/tensor_ref.h"

namespace polygrad::cuda {

// Division by a number that is known before the kernel starts: a multiplication (Granlund and Montgomery, 1994).
struct Divisor {
  std::int64_t value = 1;
  std::uint32_t factor = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(std::int64_t by) : value(by) {
    if (by <= 0 || by >= (std::int64_t{1} << 31)) return;
    while ((std::int64_t{1} << shift) < by) ++shift;
    const auto power = std::uint64_t{1} << shift, divisor = static_cast<std::uint64_t>(by);
    factor = static_cast<std::uint32_t>(((std::uint64_t{1} << 32) * (power - divisor)) / divisor + 1);
  }
  // For 0 <= n < 2^31 and a divisor below 2^31.
  POLYGRAD_INLINE std::uint32_t divide(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * factor) >> 32);
    return (high + n) >> shift;
  }
  // For any n >= 0: the quotient, and the rest in *rest.
  POLYGRAD_INLINE std::int64_t split(std::int64_t n, std::int64_t* rest) const {
    const std::int64_t limit = std::int64_t{1} << 31;
    const std::int64_t quotient = n < limit && value < limit ? divide(static_cast<std::uint32_t>(n)) : n / value;
    *rest = n - quotient * value;
    return quotient;
  }
};

template <int kOperands>
struct Walk {
  std::int32_t dim = 0;
  std::int64_t count = 1;
  Divisor sizes[8];
  std::int64_t strides[kOperands][8] = {};

  // Adds a dimension at the right.
  void append(std::int64_t size, const std::int64_t (&stride)[kOperands]) {
    count *= size;
    if (size == 1) return;
    bool merges = dim > 0;
    for (int k = 0; k < kOperands; ++k) merges = merges && strides[k][dim - 1] == stride[k] * size;
    sizes[merges ? dim - 1 : dim] = Divisor(merges ? sizes[dim - 1].value * size : size);
    if (!merges) ++dim;
    for (int k = 0; k < kOperands; ++k) strides[k][dim - 1] = stride[k];
  }

  // Whether every operand lies in memory in the order of the walk, without gaps.
  bool contiguous() const {
    if (dim == 0) return true;
    bool result = dim == 1;
    for (int k = 0; k < kOperands; ++k) result = result && strides[k][0] == 1;
    return result;
  }

  // The place of element `index` in each operand.
  POLYGRAD_INLINE void offsets(std::int64_t index, std::int64_t (&place)[kOperands]) const {
    for (int k = 0; k < kOperands; ++k) place[k] = 0;
    if (count < (std::int64_t{1} << 31)) {
      auto rest = static_cast<std::uint32_t>(index);
      for (std::int32_t i = dim - 1; i >= 0; --i) {
        const std::uint32_t quotient = sizes[i].divide(rest);
        const std::int64_t at = rest - quotient * static_cast<std::uint32_t>(sizes[i].value);
        for (int k = 0; k < kOperands; ++k) place[k] += at * strides[k][i];
        rest = quotient;
      }
      return;
    }
    for (std::int32_t i = dim - 1; i >= 0; --i) {
      const std::int64_t quotient = index / sizes[i].value, at = index - quotient * sizes[i].value;
      for (int k = 0; k < kOperands; ++k) place[k] += at * strides[k][i];
      index = quotient;
    }
  }
};

// Through tensors of one shape, in the order in which the last of them lies in memory, so that writes come together.
template <int kOperands>
Walk<kOperands> make_walk(const TensorRef* const (&operands)[kOperands]) {
  const TensorRef& last = *operands[kOperands - 1];
  std::int32_t order[8];
  for (std::int32_t i = 0; i < last.dim; ++i) {
    std::int32_t at = i;
    for (; at > 0 && last.strides[order[at - 1]] < last.strides[i]; --at) order[at] = order[at - 1];
    order[at] = i;
  }
  Walk<kOperands> walk;
  for (std::int32_t i = 0; i < last.dim; ++i) {
    std::int64_t stride[kOperands];
    for (int k = 0; k < kOperands; ++k) stride[k] = operands[k]->strides[order[i]];
    walk.append(last.sizes[order[i]], stride);
  }
  return walk;
}

// Through `out` in row-major order, and tensors that broadcast to it: aligned at the right, sizes of 1 repeat.
template <int kOperands>
Walk<kOperands> make_broadcast_walk(const TensorRef& out, const TensorRef* const (&operands)[kOperands]) {
  Walk<kOperands> walk;
  for (std::int32_t i = 0; i < out.dim; ++i) {
    std::int64_t stride[kOperands];
    for (int k = 0; k < kOperands; ++k) {
      const std::int32_t own = i - (out.dim - operands[k]->dim);
      stride[k] = own >= 0 && operands[k]->sizes[own] != 1 ? operands[k]->strides[own] : 0;
    }
    walk.append(out.sizes[i], stride);
  }
  return walk;
}

}  // namespace polygrad::cuda
