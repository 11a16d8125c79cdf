#include "engine/tensor.h"

#include <algorithm>
#include <cstring>

#include "engine/autograd.h"
#include "engine/backend/device_memory.h"
#include "engine/backend/kernels.h"
#include "engine/error.h"
#include "engine/format.h"
#include "engine/memory.h"
#include "engine/parallel.h"
#include "engine/tensor_impl.h"

namespace polygrad {

namespace detail {

Storage::Storage(std::size_t byte_count, Device where)
    : data(allocate(byte_count, where)), bytes(byte_count), device(where), owned(true) {}

Storage::Storage(void* pointer, std::size_t byte_count, std::function<void(void*)> on_destruction)
    : data(pointer), bytes(byte_count), owned(false), deleter(std::move(on_destruction)) {}

Storage::~Storage() {
  if (owned) {
    deallocate(data, bytes, device);
  } else if (deleter) {
    deleter(data);
  }
}

namespace {

std::shared_ptr<TensorImpl> wrap_storage(const Shape& shape, DType dtype, std::shared_ptr<Storage> storage) {
  auto impl = std::make_shared<TensorImpl>();
  impl->shape = shape;
  impl->strides = shape.contiguous_strides();
  impl->dtype = dtype;
  impl->storage = std::move(storage);
  impl->version = std::make_shared<std::atomic<std::uint64_t>>(0);
  return impl;
}

std::size_t byte_count(const Shape& shape, DType dtype) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.numel(), static_cast<std::int64_t>(dtype_size(dtype)), &bytes)) {
    throw ShapeError(format("[empty] the size of {} {} overflows 64 bits", to_string(dtype), to_string(shape)));
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace

std::shared_ptr<TensorImpl> make_impl(const Shape& shape, DType dtype, Device device) {
  check_device(device);
  return wrap_storage(shape, dtype, std::make_shared<Storage>(byte_count(shape, dtype), device));
}

Tensor alias(const Tensor& tensor) {
  const TensorImpl& from = *tensor.impl();
  auto impl = std::make_shared<TensorImpl>();
  impl->shape = from.shape;
  impl->strides = from.strides;
  impl->offset = from.offset;
  impl->dtype = from.dtype;
  impl->storage = from.storage;
  impl->version = from.version;
  return Tensor(std::move(impl));
}

}  // namespace detail

using detail::TensorImpl;

const TensorImpl& Tensor::checked() const {
  if (!impl_) throw ValueError("[tensor] undefined tensor; it has no elements, shape or dtype");
  return *impl_;
}

// --- making one ----------------------------------------------------------------------------------------------------

Tensor Tensor::empty(const Shape& shape, const TensorOptions& options) {
  Tensor result(detail::make_impl(shape, options.dtype, options.device));
  if (options.requires_grad) result.set_requires_grad(true);
  return result;
}

template <class T>
Tensor Tensor::from_vector(const std::vector<T>& values, const Shape& shape, bool requires_grad) {
  if (static_cast<std::int64_t>(values.size()) != shape.numel()) {
    throw ShapeError(
        format("[from_vector] {} values for shape {}; expected {}", values.size(), to_string(shape), shape.numel()));
  }
  Tensor result = empty(shape, {.dtype = dtype_of<T>::value, .requires_grad = requires_grad});
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(result.impl_->data()));
  return result;
}

Tensor Tensor::from_blob(void* pointer, const Shape& shape, DType dtype, std::function<void(void*)> deleter) {
  const std::size_t bytes = detail::byte_count(shape, dtype);
  if (!pointer && bytes > 0) throw ValueError(format("[from_blob] null pointer for shape {}", to_string(shape)));
  if (reinterpret_cast<std::uintptr_t>(pointer) % dtype_size(dtype) != 0) {
    throw ValueError(
        format("[from_blob] pointer not aligned for {}: expected a multiple of {} bytes; copy the data instead",
               to_string(dtype), dtype_size(dtype)));
  }
  return Tensor(
      detail::wrap_storage(shape, dtype, std::make_shared<detail::Storage>(pointer, bytes, std::move(deleter))));
}

// --- what it is ----------------------------------------------------------------------------------------------------

const Shape& Tensor::shape() const { return checked().shape; }
const Shape& Tensor::strides() const { return checked().strides; }
std::int64_t Tensor::numel() const { return checked().shape.numel(); }
DType Tensor::dtype() const { return checked().dtype; }
Device Tensor::device() const { return checked().storage->device; }
TensorOptions Tensor::options() const { return {.dtype = dtype(), .device = device()}; }
std::uint64_t Tensor::version() const { return checked().version->load(std::memory_order_relaxed); }

bool Tensor::is_contiguous() const {
  const TensorImpl& impl = checked();
  std::int64_t expected = 1;
  for (int i = impl.shape.dim() - 1; i >= 0; --i) {
    if (impl.shape[i] == 0) return true;
    if (impl.shape[i] != 1 && impl.strides[i] != expected) return false;
    expected *= impl.shape[i];
  }
  return true;
}

TensorRef Tensor::ref() const {
  const TensorImpl& impl = checked();
  TensorRef ref;
  ref.data = impl.data();
  ref.dtype = impl.dtype;
  ref.dim = impl.shape.dim();
  std::copy(impl.shape.begin(), impl.shape.end(), ref.sizes);
  std::copy(impl.strides.begin(), impl.strides.end(), ref.strides);
  return ref;
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return format("{} {} on {}", to_string(tensor.dtype()), to_string(tensor.shape()), to_string(tensor.device()));
}

bool all_finite(const Tensor& tensor) {
  FloatingPointGuard floating_point;
  return engine_kernels(tensor.device()).is_finite(tensor.ref());
}

// --- its elements --------------------------------------------------------------------------------------------------

namespace {

void check_access(const char* op, const Tensor& tensor, DType wanted) {
  if (tensor.dtype() != wanted) {
    throw DTypeError(format("[{}] the tensor is {}, not {}; convert it with to()", op, to_string(tensor.dtype()),
                            to_string(wanted)));
  }
}

}  // namespace

template <class T>
T* Tensor::data() {
  check_access("data", *this, dtype_of<T>::value);
  if (device().type != DeviceType::cpu) {
    throw DeviceError(format("[data] the tensor is on {}; copy it with to(Device::cpu())", to_string(device())));
  }
  return reinterpret_cast<T*>(impl_->data());
}

template <class T>
const T* Tensor::data() const {
  return const_cast<Tensor*>(this)->data<T>();
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  check_access("to_vector", *this, dtype_of<T>::value);
  const Tensor source = detach().to(Device::cpu()).contiguous();
  const T* first = reinterpret_cast<const T*>(source.impl_->data());
  return std::vector<T>(first, first + source.numel());
}

template <class T>
T Tensor::item() const {
  if (numel() != 1)
    throw ShapeError(format("[item] shape {} has {} elements; expected exactly one", to_string(shape()), numel()));
  const Tensor source = detach().to(dtype_of<T>::value).to(Device::cpu());
  return *reinterpret_cast<const T*>(source.impl_->data());
}

#define POLYGRAD_INSTANTIATE(T)                                                      \
  template Tensor Tensor::from_vector<T>(const std::vector<T>&, const Shape&, bool); \
  template T* Tensor::data<T>();                                                     \
  template const T* Tensor::data<T>() const;                                         \
  template std::vector<T> Tensor::to_vector<T>() const;                              \
  template T Tensor::item<T>() const;
POLYGRAD_INSTANTIATE(float)
POLYGRAD_INSTANTIATE(double)
POLYGRAD_INSTANTIATE(BFloat16)
POLYGRAD_INSTANTIATE(Float16)
POLYGRAD_INSTANTIATE(std::int64_t)
POLYGRAD_INSTANTIATE(std::int32_t)
POLYGRAD_INSTANTIATE(std::uint8_t)
POLYGRAD_INSTANTIATE(bool)
#undef POLYGRAD_INSTANTIATE

// --- copies --------------------------------------------------------------------------------------------------------

namespace {

Tensor copied(const Tensor& source, DType dtype) {
  Tensor result = Tensor::empty(source.shape(), {.dtype = dtype, .device = source.device()});
  FloatingPointGuard floating_point;
  engine_kernels(source.device()).copy(source.ref(), result.ref());
  return result;
}

// Contiguous tensors on two devices, of which at least one is a GPU.
void copy_between(const Tensor& source, const Tensor& result) {
  const Device from = source.device(), to = result.device();
  const std::size_t bytes = static_cast<std::size_t>(source.numel()) * dtype_size(source.dtype());
  const void* read = source.ref().data;
  void* written = result.ref().data;
  if (from.type == DeviceType::cpu) {
    cuda_memory().copy_in(read, written, bytes, to.index);
  } else if (to.type == DeviceType::cpu) {
    cuda_memory().copy_out(read, written, bytes, from.index);
  } else {
    cuda_memory().copy_across(read, from.index, written, to.index, bytes);
  }
}

}  // namespace

// d(clone)/dx: the gradient itself.
Tensor Tensor::clone() const {
  return record("clone", copied(*this, dtype()), {*this}, [](const Tensor& g, NeededMask) -> Gradients { return {g}; });
}

Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  return record("contiguous", copied(*this, dtype()), {*this},
                [](const Tensor& g, NeededMask) -> Gradients { return {g}; });
}

// d(to(dtype))/dx: the gradient, cast back.
Tensor Tensor::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  Tensor result = copied(*this, dtype);
  if (!is_floating(dtype)) return non_differentiable("to", result);
  return record("to", result, {*this},
                [from = this->dtype()](const Tensor& g, NeededMask) -> Gradients { return {g.to(from)}; });
}

Tensor Tensor::to(Device device) const {
  check_device(device);
  if (device == this->device()) return *this;
  const Tensor source = detach().contiguous();
  Tensor result = empty(shape(), {.dtype = dtype(), .device = device});
  copy_between(source, result);
  if (!is_floating(dtype())) return non_differentiable("to", result);
  return record("to", result, {*this},
                [from = this->device()](const Tensor& g, NeededMask) -> Gradients { return {g.to(from)}; });
}

Tensor Tensor::detach() const {
  checked();
  return detail::alias(*this);
}

// --- in place ------------------------------------------------------------------------------------------------------

Tensor& Tensor::fill_(double value) {
  begin_in_place("fill_", *this);
  FloatingPointGuard floating_point;
  engine_kernels(device()).fill(ref(), value);
  return *this;
}

Tensor& Tensor::copy_(const Tensor& source) {
  if (source.shape() != shape()) {
    throw ShapeError(format("[copy_] shapes differ: {} from {}; expected equal shapes", to_string(shape()),
                            to_string(source.shape())));
  }
  if (source.device() != device()) {
    throw DeviceError(format("[copy_] devices differ: {} from {}; move the source with to()", to_string(device()),
                             to_string(source.device())));
  }
  if (needs_grad({source})) {
    throw GradError(
        "[copy_] the source needs a gradient, which an in-place copy would cut; detach() it, or use a NoGradGuard");
  }
  begin_in_place("copy_", *this);
  const Tensor from = source.impl_->storage == impl_->storage ? copied(source, source.dtype()) : source;
  FloatingPointGuard floating_point;
  engine_kernels(device()).copy(from.ref(), ref());
  return *this;
}

}  // namespace polygrad
