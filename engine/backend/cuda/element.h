// What kernels read and write: elements as they are stored and as they are computed with, and packs of them.
//
// Where this stands: below every kernel. Read next: walk.h (strided tensors), block.h (what threads do together).
// Internal: not installed.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/bfloat16.h"
#include "engine/float16.h"
#include "engine/tensor_ref.h"

namespace polygrad::cuda {

template <class T>
inline constexpr bool kNarrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// 16-bit types are computed with as floats.
template <class T>
using Compute = std::conditional_t<kNarrow<T>, float, T>;

template <class T>
POLYGRAD_INLINE Compute<T> load(T stored) {
  if constexpr (kNarrow<T>) {
    return widen(stored);
  } else {
    return stored;
  }
}
template <class T, class C>
POLYGRAD_INLINE T store(C value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return round_to_bfloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return round_to_float16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// kCount neighbours that are read or written at once.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};
// As many as 16 bytes hold.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <int kCount, class T>
POLYGRAD_INLINE Pack<T, kCount> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, class T>
POLYGRAD_INLINE void store_pack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}
// Whether packs of 16 bytes can begin at all these addresses; absent tensors can't hinder.
template <class... Pointers>
bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

// Memory that is read or written as numbers of type C, whatever it stores: C = float stores f32, bf16 or f16, other
// types themselves. The storage is a value, not a template's argument: all threads take the same branch, one kernel
// serves all dtypes and their mixtures, and nvcc compiles a third of the code.
template <class C>
struct Output;
template <class C>
struct Input {
  const void* data;
  DType dtype;
  Input() = default;
  explicit Input(const TensorRef& ref) : data(ref.data), dtype(ref.dtype) {}
  POLYGRAD_INLINE explicit Input(const Output<C>& out) : data(out.data), dtype(out.dtype) {}
  POLYGRAD_INLINE bool present() const { return data != nullptr; }

  POLYGRAD_INLINE C operator[](std::int64_t i) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::bf16) return widen(static_cast<const BFloat16*>(data)[i]);
      if (dtype == DType::f16) return widen(static_cast<const Float16*>(data)[i]);
    }
    return static_cast<const C*>(data)[i];
  }
  // kCount neighbours; the first lies at a multiple of kCount elements from an aligned one.
  template <int kCount>
  POLYGRAD_INLINE void read(std::int64_t i, C (&x)[kCount]) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::bf16) return widen_pack(static_cast<const BFloat16*>(data) + i, x);
      if (dtype == DType::f16) return widen_pack(static_cast<const Float16*>(data) + i, x);
    }
    const Pack<C, kCount> pack = load_pack<kCount>(static_cast<const C*>(data) + i);
    for (int j = 0; j < kCount; ++j) x[j] = pack.at[j];
  }

 private:
  template <int kCount, class T>
  static POLYGRAD_INLINE void widen_pack(const T* from, float (&x)[kCount]) {
    const Pack<T, kCount> pack = load_pack<kCount>(from);
    for (int j = 0; j < kCount; ++j) x[j] = widen(pack.at[j]);
  }
};

template <class C>
struct Output {
  void* data;
  DType dtype;
  Output() = default;
  explicit Output(const TensorRef& ref) : data(ref.data), dtype(ref.dtype) {}
  POLYGRAD_INLINE bool present() const { return data != nullptr; }

  POLYGRAD_INLINE void write(std::int64_t i, C value) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::bf16) {
        static_cast<BFloat16*>(data)[i] = round_to_bfloat16(value);
        return;
      }
      if (dtype == DType::f16) {
        static_cast<Float16*>(data)[i] = round_to_float16(value);
        return;
      }
    }
    static_cast<C*>(data)[i] = value;
  }
  template <int kCount>
  POLYGRAD_INLINE void write(std::int64_t i, const C (&x)[kCount]) const {
    if constexpr (std::is_same_v<C, float>) {
      if (dtype == DType::bf16) return round_pack(static_cast<BFloat16*>(data) + i, x);
      if (dtype == DType::f16) return round_pack(static_cast<Float16*>(data) + i, x);
    }
    Pack<C, kCount> pack;
    for (int j = 0; j < kCount; ++j) pack.at[j] = x[j];
    store_pack(static_cast<C*>(data) + i, pack);
  }

 private:
  template <int kCount, class T>
  static POLYGRAD_INLINE void round_pack(T* to, const float (&x)[kCount]) {
    Pack<T, kCount> pack;
    for (int j = 0; j < kCount; ++j) pack.at[j] = store<T>(x[j]);
    store_pack(to, pack);
  }
};
// Neighbours that a thread reads at once where memory allows.
template <class C>
inline constexpr int kPackOf = sizeof(C) == 8 ? 2 : 4;

// Throws InternalError for a dtype that the front should have refused.
[[noreturn]] void no_kernel_for(DType dtype);

// f(C()) for the type that a floating dtype is computed in.
template <class F>
void dispatch_compute(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return f(float{});
    case DType::f64:
      return f(double{});
    default:
      no_kernel_for(dtype);
  }
}
// f(T()) for the dtype's own T.
template <class F>
void dispatch_floating(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::bf16:
      return f(BFloat16{});
    case DType::f16:
      return f(Float16{});
    default:
      no_kernel_for(dtype);
  }
}
// f(an unsigned integer of the dtype's size): for kernels that only move elements.
template <class F>
void dispatch_size(DType dtype, const F& f) {
  switch (dtype_size(dtype)) {
    case 8:
      return f(std::uint64_t{});
    case 4:
      return f(std::uint32_t{});
    case 2:
      return f(std::uint16_t{});
    default:
      return f(std::uint8_t{});
  }
}

}  // namespace polygrad::cuda
