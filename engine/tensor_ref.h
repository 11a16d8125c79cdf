// TensorRef: what a kernel receives. A pointer, a dtype, sizes and strides; no ownership, no autograd.
//
// Where this stands: between the fronts (which own Tensors) and the kernels. The kernels of ops/cpu are compiled for
// the build's own instruction set, so this header has no inline function that a linker could share with other code:
// everything in it is always inlined.
// Read next: tensor.h (the owner), ops/kernels/*.h (the kernels' signatures).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/dtype.h"

// POLYGRAD_HOST_INLINE: the same for what only the host calls.
#if defined(__CUDACC__)
#define POLYGRAD_INLINE __host__ __device__ __forceinline__
#define POLYGRAD_HOST_INLINE __forceinline__
#elif defined(__GNUC__)
#define POLYGRAD_INLINE __attribute__((always_inline)) inline
#define POLYGRAD_HOST_INLINE POLYGRAD_INLINE
#else
#define POLYGRAD_INLINE inline
#define POLYGRAD_HOST_INLINE POLYGRAD_INLINE
#endif

namespace polygrad {

struct TensorRef {
  void* data = nullptr;  // the first element (the tensor's offset is applied); null for an absent tensor
  DType dtype = DType::f32;
  std::int32_t dim = 0;
  std::int64_t sizes[8] = {};
  std::int64_t strides[8] = {};  // in elements

  POLYGRAD_INLINE bool present() const { return data != nullptr; }
  POLYGRAD_INLINE std::int64_t numel() const {
    std::int64_t n = 1;
    for (std::int32_t i = 0; i < dim; ++i) n *= sizes[i];
    return n;
  }
  template <class T>
  POLYGRAD_INLINE T* as() const {
    return static_cast<T*>(data);
  }
};

// A TensorRef whose dtype has been dispatched on.
template <class T>
struct TensorView {
  T* data;
  std::int32_t dim;
  const std::int64_t* sizes;
  const std::int64_t* strides;
  POLYGRAD_INLINE explicit TensorView(const TensorRef& ref)
      : data(static_cast<T*>(ref.data)), dim(ref.dim), sizes(ref.sizes), strides(ref.strides) {}
};

}  // namespace polygrad
