// Naive twins of the unary family, by name.
#pragma once

#include <string>

#include "tests/reference/array.h"

namespace reference {

// "gelu", "exp_neg", ...; throws std::invalid_argument for a name without a line in unary.cpp.
Array unary(const std::string& name, const Array& x);
Array pow(const Array& x, int n);

}  // namespace reference
