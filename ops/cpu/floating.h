// Which floating type a kernel runs in: dispatch on the dtype of its tensors.
#pragma once

#include "engine/tensor_ref.h"

namespace polygrad {

// f(float()) or f(double()); fronts let no other dtype through.
template <class F>
POLYGRAD_INLINE void dispatch_floating(DType dtype, const F& f) {
  if (dtype == DType::f32) {
    f(float());
  } else {
    f(double());
  }
}

}  // namespace polygrad
