// Naive twins of the norm family.
#pragma once

#include "tests/reference/array.h"

namespace reference {

// Over the last dimension; an empty weight is 1, an empty bias 0 (an Array without shape counts as empty).
Array layer_norm(const Array& x, const Array& weight, const Array& bias, double eps);

}  // namespace reference
