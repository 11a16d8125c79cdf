#include "ops/check.h"

#include "engine/error.h"
#include "engine/format.h"

namespace polygrad {

void check_floating(const char* op, const Tensor& x) {
  if (x.dtype() != DType::f32 && x.dtype() != DType::f64) {
    throw DTypeError(format("[{}] wrong dtype: expected f32 or f64, got {}; convert it with to()", op, describe(x)));
  }
}

void check_same_dtype(const char* op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) {
    throw DTypeError(format("[{}] dtypes differ: {} and {}; nothing is promoted, convert one with to()", op,
                            describe(a), describe(b)));
  }
}

void check_same_device(const char* op, const Tensor& a, const Tensor& b) {
  if (a.device() != b.device()) {
    throw DeviceError(
        format("[{}] tensors on different devices: {} and {}; move one with to()", op, describe(a), describe(b)));
  }
}

}  // namespace polygrad
