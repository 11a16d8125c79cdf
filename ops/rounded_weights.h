// Weights as products in 16 bits read them: rounded once for each version, kept as long as a guard. Internal: not
// installed.
//
// Where this stands: between the fronts that multiply by a weight and their kernels. A weight is known by its family of
// views and its version, so one that an optimizer has written since is rounded anew; one that died is forgotten.
// They live in the guard, and not in the tensor, because elements can be written through a pointer, unseen by the
// version: whoever does that between two steps is right, since each step has a guard of its own.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>

#include "engine/tensor.h"

namespace polygrad {

// In what the thread's guard lets products be computed: bf16, f16, or f32.
DType product_dtype();
// Whether an op on x computes in 16 bit: the thread's guard says so, and x is f32 or product_dtype().
bool computes_narrow(const Tensor& x);
// Throws DTypeError where a parameter (or another tensor beside x that no product reads) has not x's dtype; where the
// op computes in 16 bit, where it is not f32. ValueError where it is undefined.
void check_parameter_dtype(const char* op, const Tensor& x, const Tensor& parameter, const char* name);
// x in product_dtype(), outside the graph; itself where it is.
Tensor rounded(const Tensor& x);
// A result's: product_dtype() and x's device.
TensorOptions rounded_options(const Tensor& x);

// The right-hand matrix B of products in `dtype`, a 16-bit one, as MatmulKernels::pack makes it: weightᵀ (in, out)
// where `transposed`, else weight (out, in) itself. weight (out, in) is f32, of any strides. A backward names its
// forward's dtype: it runs with or without a guard.
Tensor packed_weight(const char* op, const Tensor& weight, DType dtype, bool transposed);

namespace detail {

class RoundedWeights {
 public:
  Tensor find(const char* op, const Tensor& weight, DType dtype, bool transposed);

 private:
  using Family = std::weak_ptr<std::atomic<std::uint64_t>>;  // its address is nobody else's while this lives
  struct Entry {
    Family family;
    std::uint64_t version;
    Shape shape, strides;
    const void* data;
    bool transposed;
    Tensor packed;
  };
  std::unordered_multimap<const void*, Entry> entries_;  // by the family's address
};

}  // namespace detail
}  // namespace polygrad
