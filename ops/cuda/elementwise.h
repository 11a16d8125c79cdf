// Elementwise kernels: out = f(operands), with broadcasting, a pack of neighbours a thread.
//
// Where this stands: above the engine's element.h and walk.h; used by unary.cu, binary.cu and what else maps elements.
// f is a small struct whose call operator is POLYGRAD_INLINE.
// Read next: unary.cu.
#pragma once

#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"
#include "engine/backend/cuda/walk.h"

namespace polygrad::cuda {

inline constexpr int kMapThreads = 256;

// Operands that all lie in memory as the output does.
template <int kOperands>
struct Flat {
  std::int64_t count;
  POLYGRAD_INLINE void offsets(std::int64_t index, std::int64_t (&place)[kOperands]) const {
    for (int k = 0; k < kOperands; ++k) place[k] = index;
  }
  POLYGRAD_INLINE bool repeats(int) const { return false; }
};
// Operands that broadcast to the output.
template <int kOperands>
struct Broadcast : Walk<kOperands> {
  // Whether a pack's neighbours are one and the same element of operand k.
  POLYGRAD_INLINE bool repeats(int k) const { return this->strides[k][this->dim - 1] == 0; }
};

template <class C, int kOperands>
struct Operands {
  Input<C> at[kOperands];
};

// f(numbers of the operands) for one element.
template <class F, class C>
POLYGRAD_INLINE auto apply(const F& f, const C (&x)[1]) {
  return f(x[0]);
}
template <class F, class C>
POLYGRAD_INLINE auto apply(const F& f, const C (&x)[2]) {
  return f(x[0], x[1]);
}
template <class F, class C>
POLYGRAD_INLINE auto apply(const F& f, const C (&x)[3]) {
  return f(x[0], x[1], x[2]);
}

// A thread maps a pack, or one element where memory has no packs.
template <int kCount, class F, class C, class R, int kOperands, class Order>
__global__ void map_kernel(F f, Order order, bool packs, Operands<C, kOperands> in, Output<R> out) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kMapThreads + threadIdx.x;
  std::int64_t place[kOperands];
  if (!packs) {
    if (thread >= order.count) return;
    order.offsets(thread, place);
    C x[kOperands];
#pragma unroll
    for (int k = 0; k < kOperands; ++k) x[k] = in.at[k][place[k]];
    out.write(thread, apply(f, x));
    return;
  }
  const std::int64_t first = thread * kCount;
  if (first >= order.count) return;
  order.offsets(first, place);
  C read[kOperands][kCount];
#pragma unroll
  for (int k = 0; k < kOperands; ++k) {
    if (order.repeats(k)) {
      const C repeated = in.at[k][place[k]];
#pragma unroll
      for (int j = 0; j < kCount; ++j) read[k][j] = repeated;
    } else {
      in.at[k].read(place[k], read[k]);
    }
  }
  R result[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    C x[kOperands];
#pragma unroll
    for (int k = 0; k < kOperands; ++k) x[k] = read[k][j];
    result[j] = apply(f, x);
  }
  out.write(first, result);
}

// packs: whether memory has packs of that many neighbours.
template <int kCount, class C, class R, int kOperands, class F, class Order>
void launch_map(const char* name, const F& f, const Order& order, bool packs, const Operands<C, kOperands>& in,
                const TensorRef& out) {
  const std::int64_t threads = packs ? order.count / kCount : order.count;
  launch(name, {.x = ceil_div(threads, kMapThreads)}, kMapThreads, 0, map_kernel<kCount, F, C, R, kOperands, Order>, f,
         order, packs, in, Output<R>(out));
}

// Whether all of these store 16 bit: then a thread takes twice as many, so that it moves as many bytes.
template <class C, int kOperands>
bool all_narrow(const TensorRef* const (&operands)[kOperands], const TensorRef& out) {
  bool narrow = std::is_same_v<C, float> && dtype_size(out.dtype) == 2;
  for (int k = 0; k < kOperands; ++k) narrow = narrow && dtype_size(operands[k]->dtype) == 2;
  return narrow;
}

// out = f(operands), all contiguous and of one size. R: what is written; C: what is computed with.
template <class C, class R, int kOperands, class F>
void map_flat(const char* name, const F& f, const TensorRef* const (&operands)[kOperands], const TensorRef& out) {
  const Flat<kOperands> order{out.numel()};
  Operands<C, kOperands> in;
  bool starts = aligned(out.data);
  for (int k = 0; k < kOperands; ++k) {
    in.at[k] = Input<C>(*operands[k]);
    starts = starts && aligned(operands[k]->data);
  }
  constexpr int kCount = kPackOf<C>;
  if constexpr (std::is_same_v<C, float> && std::is_same_v<R, float>) {
    if (starts && order.count % (2 * kCount) == 0 && all_narrow<C>(operands, out)) {
      return launch_map<2 * kCount, C, R>(name, f, order, true, in, out);
    }
  }
  launch_map<kCount, C, R>(name, f, order, starts && order.count % kCount == 0, in, out);
}

// out = f(operands), where operands of any strides broadcast to out, which is contiguous.
template <class C, class R, int kOperands, class F>
void map(const char* name, const F& f, const TensorRef* const (&operands)[kOperands], const TensorRef& out) {
  const Broadcast<kOperands> order{make_broadcast_walk<kOperands>(out, operands)};
  constexpr int kCount = kPackOf<C>;
  const int last = order.dim - 1;
  Operands<C, kOperands> in;
  bool packs = last >= 0 && order.sizes[last].value % kCount == 0 && aligned(out.data);
  for (int k = 0; k < kOperands; ++k) {
    in.at[k] = Input<C>(*operands[k]);
    if (!packs || order.repeats(k)) continue;
    packs = order.strides[k][last] == 1 && aligned(operands[k]->data);
    for (int i = 0; i < last; ++i) packs = packs && order.strides[k][i] % kCount == 0;
  }
  launch_map<kCount, C, R>(name, f, order, packs, in, out);
}

}  // namespace polygrad::cuda
