// Naive twins of the softmax family.
#pragma once

#include "tests/reference/array.h"

namespace reference {

Array softmax(const Array& x, int dim);
Array log_softmax(const Array& x, int dim);

}  // namespace reference
