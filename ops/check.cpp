#include "ops/check.h"

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

void check_defined(const char* op, const Tensor& x, const char* name) {
  if (!x.defined()) {
    throw ValueError(format("[{}] {} is an undefined tensor; it has no elements, shape or dtype", op, name));
  }
}

void check_floating(const char* op, const Tensor& x, const char* name) {
  check_defined(op, x, name);
  if (x.dtype() != DType::f32 && x.dtype() != DType::f64) {
    throw DTypeError(format("[{}] wrong dtype: expected f32 or f64, got {}; convert it with to()", op, describe(x)));
  }
}

void check_same_dtype(const char* op, const Tensor& a, const Tensor& b, const char* b_name) {
  check_defined(op, b, b_name);
  if (a.dtype() != b.dtype()) {
    throw DTypeError(format("[{}] dtypes differ: {} and {}; nothing is promoted, convert one with to()", op,
                            describe(a), describe(b)));
  }
}

void check_same_device(const char* op, const Tensor& a, const Tensor& b, const char* b_name) {
  check_defined(op, b, b_name);
  if (a.device() != b.device()) {
    throw DeviceError(
        format("[{}] tensors on different devices: {} and {}; move one with to()", op, describe(a), describe(b)));
  }
}

TensorRef around(const Tensor& contiguous, int dim) {
  TensorRef ref = contiguous.ref();
  std::int64_t outer = 1, inner = 1;
  const std::int64_t n = ref.sizes[dim];
  for (int i = 0; i < dim; ++i) outer *= ref.sizes[i];
  for (int i = dim + 1; i < ref.dim; ++i) inner *= ref.sizes[i];
  ref.dim = 3;
  ref.sizes[0] = outer, ref.sizes[1] = n, ref.sizes[2] = inner;
  ref.strides[0] = n * inner, ref.strides[1] = inner, ref.strides[2] = 1;
  return ref;
}

}  // namespace polygrad
