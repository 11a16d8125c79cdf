// The host's side of attention on tensor cores: which kernel serves a problem, and how it is started.
//
// Where this stands: beside attention_mma.h; the two headers with kernels use both.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "ops/cuda/attention_mma.h"

namespace polygrad::cuda::attention {

// Whether there are kernels for the problem. They count tokens, and the bytes from one to the next, in 32 bits.
inline bool has_tensor_core_kernels(const AttentionProblem& problem) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  const DType dtype = problem.q.dtype;
  const std::int64_t width = problem.q.sizes[3];
  for (const TensorRef& x : {problem.q, problem.k, problem.v}) {
    if (x.sizes[2] > kMost || x.strides[2] > kMost) return false;
  }
  if (problem.bias.present() && problem.bias.dtype != dtype && problem.bias.dtype != DType::f32) return false;
  return (dtype == DType::bf16 || dtype == DType::f16) && width % 8 == 0 && width <= kWidths[3];
}

// The entries, one for each of the dtypes: attention_mma_*.cu. The state, where there is one, is f32.
template <class T>
void mma_forward(const AttentionProblem& problem, const TensorRef& out, const TensorRef& state);
// Both take inner as inner_products() gives it.
template <class T>
void mma_backward_queries(const AttentionProblem& problem, const TensorRef& state, const TensorRef& inner,
                          const TensorRef& grad, const TensorRef& dq);
template <class T>
void mma_backward_keys(const AttentionProblem& problem, const TensorRef& state, const TensorRef& inner,
                       const TensorRef& grad, const TensorRef& dk, const TensorRef& dv);

#if defined(__CUDACC__) || defined(POLYGRAD_HOST_CUDA)

// f(std::integral_constant<int, the padded width>())
template <class F>
void dispatch_width(std::int64_t width, const F& f) {
  if (width <= kWidths[0]) return f(std::integral_constant<int, kWidths[0]>());
  if (width <= kWidths[1]) return f(std::integral_constant<int, kWidths[1]>());
  if (width <= kWidths[2]) return f(std::integral_constant<int, kWidths[2]>());
  f(std::integral_constant<int, kWidths[3]>());
}

// F<φ>::kEntry for the φ with this id.
template <template <class> class F>
auto entry_for(std::int32_t phi) {
  using Entry = std::remove_const_t<decltype(F<Softmax>::kEntry)>;
  if (phi == attention_activation::kSoftmax) return F<Softmax>::kEntry;
  return attention_activation::ActivationList::Table<Entry, F>::kEntries[phi];
}

// Whether 16 bytes, or 4, can be read or written at once in all rows of all heads. Absent tensors can't hinder.
inline bool rows_aligned(std::initializer_list<TensorRef> tensors, std::int64_t bytes) {
  for (const TensorRef& x : tensors) {
    if (!x.present()) continue;
    const std::int64_t size = static_cast<std::int64_t>(dtype_size(x.dtype));
    if (reinterpret_cast<std::uintptr_t>(x.data) % static_cast<std::uintptr_t>(bytes) != 0) return false;
    for (int i = 0; i < 3; ++i) {
      // The row's stride of a single token too: the rows behind it are named, though not read.
      if ((x.sizes[i] > 1 || i == 2) && x.strides[i] * size % bytes != 0) return false;
    }
  }
  return true;
}

inline Alignment alignment_of(std::initializer_list<TensorRef> inputs, std::initializer_list<TensorRef> results) {
  return {.loads = rows_aligned(inputs, 16), .stores = rows_aligned(results, 4)};
}

// Two warps, which share the copying, or four where there are rows for a third. (copy_rows needs a multiple of 64
// threads.)
inline int warps_for(std::int64_t rows, int rows_of_warp) { return rows <= 2 * rows_of_warp ? 2 : kMostWarps; }

// Lets a kernel have the most shared memory that it ever asks for: beyond 48 KiB it must be told. That is the kernel's
// own, for all threads, so it is said once for a device (a bit of `told`), and no launch lowers another one's.
template <class... Parameters>
void allow_shared(std::atomic<std::uint64_t>& told, void (*kernel)(Parameters...), int most) {
  const std::uint64_t device = std::uint64_t{1} << context().device();
  if ((told.load(std::memory_order_acquire) & device) != 0) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "cudaFuncSetAttribute");
  told.fetch_or(device, std::memory_order_release);
}

// A block for each warps · rows_of_warp rows of each head.
template <class... Parameters, class... Arguments>
void launch_rows(const char* name, const Problem<float>& p, std::int64_t rows, int warps, int rows_of_warp, int shared,
                 void (*kernel)(Parameters...), const Arguments&... arguments) {
  launch(name, {.x = p.batch * p.heads * ceil_div(rows, static_cast<std::int64_t>(warps) * rows_of_warp)},
         warps * kWarp, static_cast<std::size_t>(shared), kernel, arguments...);
}

#endif

}  // namespace polygrad::cuda::attention
