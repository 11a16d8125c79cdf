// Naive twins of the matmul family.
#pragma once

#include "tests/reference/array.h"

namespace reference {

// a (..., m, k) b (..., k, n), the leading sizes broadcast.
Array matmul(const Array& a, const Array& b);
// x (..., in) weight (out, in)ᵀ + bias (out).
Array linear(const Array& x, const Array& weight, const Array& bias);
// z·Φ(z) of linear's result z.
Array linear_gelu(const Array& x, const Array& weight, const Array& bias);

}  // namespace reference
