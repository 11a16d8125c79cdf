// Which floating type a kernel runs in: dispatch on the dtype of its tensors.
#pragma once

#include "engine/tensor_ref.h"
#include "ops/kernels/dispatch.h"

namespace polygrad {

// f(float()) or f(double()). Fronts let no other dtype through; one that did is refused before memory is read as what
// it is not.
template <class F>
POLYGRAD_INLINE void dispatch_floating(DType dtype, const F& f) {
  if (dtype == DType::f32) {
    f(float());
  } else if (dtype == DType::f64) {
    f(double());
  } else {
    refuse_dtype(dtype);
  }
}

}  // namespace polygrad
