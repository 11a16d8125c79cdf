// Kernels along rows of contiguous numbers: a warp or a block takes a row, and keeps it in registers where it fits.
//
// Where this stands: above the engine's element.h and block.h; used by norm.cu, softmax.cu, loss.cu.
// A kernel is written once, as loops over "steps": in step s thread t of the group has the pack t + s·kThreads of the
// row. Shape chooses the group: short rows go to warps, eight in a block; longer ones to a block; rows that no
// registers hold are read anew in each pass (kSteps = 0). Read next: norm.cu.
#pragma once

#include <type_traits>

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/element.h"
#include "engine/backend/cuda/launch.h"

namespace polygrad::cuda {

inline constexpr int kRowThreads = 256;  // of a block

template <class C_, int kThreads_, int kSteps_>
struct RowGroup {
  using C = C_;
  static constexpr int kThreads = kThreads_, kSteps = kSteps_;
  static constexpr int kGroups = kRowThreads / kThreads;  // in a block
  static constexpr int kCount = kPackOf<C>;
  static constexpr bool kCached = kSteps > 0;
  static constexpr int kSlots = kCached ? kSteps : 1;
  // What sums along a row are formed in: long rows need more than a float.
  using S = std::conditional_t<kCached, C, double>;
};

// `rows` rows of n numbers; packs: n and all addresses allow packs. A division in f64 costs a warp as much as the rest
// of a short row: 1 / n comes from the host.
struct RowShape {
  std::int64_t rows, n;
  bool packs;
  double inverse_n;
};
template <class C, class... Refs>
RowShape row_shape(std::int64_t rows, std::int64_t n, const Refs&... refs) {
  return {rows, n, n % kPackOf<C> == 0 && aligned(refs.data...), 1 / static_cast<double>(n)};
}

// f(a RowGroup) for the group that suits rows of n numbers.
template <class C, class F>
void dispatch_rows(std::int64_t n, const F& f) {
  constexpr int kSteps = 4;
  if (n <= kWarp * kSteps * kPackOf<C>) return f(RowGroup<C, kWarp, kSteps>{});
  if (n <= kRowThreads * kSteps * kPackOf<C>) return f(RowGroup<C, kRowThreads, kSteps>{});
  f(RowGroup<C, kRowThreads, 0>{});
}

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

// The row's number of this group, and the thread's in the group.
template <class G>
__device__ __forceinline__ std::int64_t group_index() {
  return static_cast<std::int64_t>(blockIdx.x) * G::kGroups + static_cast<int>(threadIdx.x) / G::kThreads;
}
template <class G>
__device__ __forceinline__ int group_thread() {
  return static_cast<int>(threadIdx.x) % G::kThreads;
}

// f(slot, pack) for each of the thread's packs of a row. The slot is a constant where the row is kept in registers.
template <class G, class F>
__device__ __forceinline__ void each_pack(const RowShape& shape, const F& f) {
  const std::int64_t packs = (shape.n + G::kCount - 1) / G::kCount;
  if constexpr (G::kCached) {
#pragma unroll
    for (int step = 0; step < G::kSteps; ++step) {
      const std::int64_t pack = group_thread<G>() + step * G::kThreads;
      if (pack < packs) f(step, pack);
    }
  } else {
    for (std::int64_t pack = group_thread<G>(); pack < packs; pack += G::kThreads) f(0, pack);
  }
}

// f(slot, j, column) for each of the thread's numbers.
template <class G, class F>
__device__ __forceinline__ void each_number(const RowShape& shape, const F& f) {
  each_pack<G>(shape, [&](int slot, std::int64_t pack) {
#pragma unroll
    for (int j = 0; j < G::kCount; ++j) {
      const std::int64_t column = pack * G::kCount + j;
      if (shape.packs || column < shape.n) f(slot, j, column);
    }
  });
}

template <class C, int kCount>
__device__ __forceinline__ void read_pack(const RowShape& shape, const Input<C>& in, std::int64_t first,
                                          std::int64_t pack, C (&x)[kCount]) {
  if (shape.packs) {
    in.read(first + pack * kCount, x);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const std::int64_t column = pack * kCount + j;
    x[j] = column < shape.n ? in[first + column] : C(0);
  }
}
template <class C, int kCount>
__device__ __forceinline__ void write_pack(const RowShape& shape, const Output<C>& out, std::int64_t first,
                                           std::int64_t pack, const C (&x)[kCount]) {
  if (shape.packs) {
    out.write(first + pack * kCount, x);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const std::int64_t column = pack * kCount + j;
    if (column < shape.n) out.write(first + column, x[j]);
  }
}

// A row that is read once, where registers hold it, else whenever it is asked for.
template <class G>
class Row {
 public:
  using C = typename G::C;
  __device__ __forceinline__ Row(const RowShape& shape, const Input<C>& in, std::int64_t first)
      : shape_(shape), in_(in), first_(first) {
    if constexpr (G::kCached) {
      each_pack<G>(shape, [&](int slot, std::int64_t pack) { read_pack(shape, in, first, pack, kept_[slot]); });
    }
  }
  // f(slot, j, column, number)
  template <class F>
  __device__ __forceinline__ void each(const F& f) const {
    each_pack<G>(shape_, [&](int slot, std::int64_t pack) {
      C x[G::kCount];
      get(slot, pack, x);
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) {
        const std::int64_t column = pack * G::kCount + j;
        if (shape_.packs || column < shape_.n) f(slot, j, column, x[j]);
      }
    });
  }
  __device__ __forceinline__ void get(int slot, std::int64_t pack, C (&x)[G::kCount]) const {
    if constexpr (G::kCached) {
#pragma unroll
      for (int j = 0; j < G::kCount; ++j) x[j] = kept_[slot][j];
    } else {
      read_pack(shape_, in_, first_, pack, x);
    }
  }

 private:
  const RowShape& shape_;
  const Input<C>& in_;
  std::int64_t first_;
  C kept_[G::kSlots][G::kCount];
};

#endif

}  // namespace polygrad::cuda
