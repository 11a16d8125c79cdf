// Tensor: a value handle on a shared n-dimensional array, with autograd data where it is needed.
//
// Where this stands: the centre of engine/. All mathematics is free functions (ops/); Tensor has only what the engine
// itself implements.
// Read next: factory.h (making tensors), autograd.h (how operations are recorded), memory.h (where the bytes come
// from).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/dtype.h"
#include "engine/shape.h"
#include "engine/tensor_ref.h"

namespace polygrad {

class Generator;
class Tensor;

struct TensorOptions {
  DType dtype = DType::f32;
  Device device = {};
  bool requires_grad = false;      // floating dtypes only; else DTypeError
  Generator* generator = nullptr;  // for random factories; null: the calling thread's default generator
};

namespace detail {
struct TensorImpl;
class Node;
}  // namespace detail

// Copying a Tensor shares it: both handles see the same elements, gradient and graph. clone() copies the elements.
// A Tensor may be read by several threads at once; writing it, or its autograd data, needs a lock of the caller's.
class Tensor {
 public:
  Tensor() = default;  // undefined: no elements, no shape; only defined() and assignment are allowed
  bool defined() const { return impl_ != nullptr; }

  // --- making one (more in factory.h) -------------------------------------------------------------------------------
  // Uninitialised elements. Throws ShapeError (negative size), OutOfMemoryError, DeviceError.
  static Tensor empty(const Shape& shape, const TensorOptions& options = {});
  // A CPU tensor with a copy of `values` in row-major order. T: float, double, int64_t, int32_t, uint8_t, bool,
  // BFloat16, Float16. Throws ShapeError where values.size() != shape.numel().
  template <class T>
  static Tensor from_vector(const std::vector<T>& values, const Shape& shape, bool requires_grad = false);
  template <class T>
  static Tensor from_vector(const std::vector<T>& values) {
    return from_vector<T>(values, Shape{static_cast<std::int64_t>(values.size())});
  }
  // Wraps the caller's row-major memory without a copy; `deleter(pointer)` runs when the last handle dies (none: the
  // caller keeps it alive). The pointer must be aligned for the dtype (else ValueError).
  static Tensor from_blob(void* pointer, const Shape& shape, DType dtype = DType::f32,
                          std::function<void(void*)> deleter = nullptr);

  // --- what it is ---------------------------------------------------------------------------------------------------
  const Shape& shape() const;
  int dim() const { return shape().dim(); }
  std::int64_t size(int dim) const { return shape().at(dim); }  // negative counts from the end
  const Shape& strides() const;                                 // in elements
  std::int64_t numel() const;
  DType dtype() const;
  Device device() const;
  TensorOptions options() const;  // dtype and device, no gradient
  bool is_contiguous() const;     // row-major without gaps

  // --- its elements -------------------------------------------------------------------------------------------------
  // A CPU tensor's first element. Throws DTypeError where T is not its dtype, DeviceError where it is not on the CPU.
  template <class T>
  T* data();
  template <class T>
  const T* data() const;
  // All elements in row-major order, whatever the strides; a tensor on a GPU is copied first. T must be its dtype.
  template <class T>
  std::vector<T> to_vector() const;
  // The only element, converted to T. Throws ShapeError where there is not exactly one.
  template <class T>
  T item() const;

  // --- copies (each records its gradient: the same copy backwards) --------------------------------------------------
  Tensor clone() const;            // contiguous, own memory
  Tensor contiguous() const;       // itself where it already is, else a copy
  Tensor to(DType dtype) const;    // itself where nothing changes; float -> integer truncates toward zero
  Tensor to(Device device) const;  // itself where nothing changes
  // The same elements (and the same version counter), outside the graph.
  Tensor detach() const;

  // --- in place: no gradient; GradError on a tensor that is part of a recorded graph, and on a leaf that needs a
  // gradient unless a NoGradGuard is alive; ValueError where several elements share one place in memory
  // ----------------------------
  Tensor& fill_(double value);
  Tensor& copy_(const Tensor& source);  // same shape; casts

  // --- autograd -----------------------------------------------------------------------------------------------------
  bool requires_grad() const;             // a leaf that wants a gradient, or computed from one while recording
  Tensor& set_requires_grad(bool value);  // leaves only (GradError)
  bool is_leaf() const;
  // The accumulated gradient of a leaf: undefined before the first backward.
  Tensor grad() const;
  void zero_grad();                   // forgets the gradient (a pinned buffer is filled with zeros)
  void set_grad(const Tensor& grad);  // replaces it; same shape and dtype, or undefined
  // From now on gradients are accumulated into this buffer (same shape and dtype, contiguous); undefined: unpin.
  void pin_grad(const Tensor& buffer);
  // Runs once a walk, when all of its gradient has been added up, in the thread that walks the graph.
  void set_post_accumulate_hook(std::function<void(Tensor& leaf)> hook);
  // Walks the graph from here; see autograd.h. `gradient` is dL/d(this), by default 1 for a single element (else
  // GradError). The walk releases what it consumes; a second one throws GradError unless the first was told to retain
  // the graph.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;

  // How often this family of views has been written in place.
  std::uint64_t version() const;
  // For kernels: strides included. The tensor must outlive it.
  TensorRef ref() const;
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  explicit Tensor(std::shared_ptr<detail::TensorImpl> impl) : impl_(std::move(impl)) {}
  const std::shared_ptr<detail::TensorImpl>& impl() const { return impl_; }

 private:
  const detail::TensorImpl& checked() const;
  std::shared_ptr<detail::TensorImpl> impl_;
};

// "f32 (2, 3) on cpu", for messages.
std::string describe(const Tensor& tensor);
// No element is NaN or infinite; true for integers.
bool all_finite(const Tensor& tensor);

}  // namespace polygrad
