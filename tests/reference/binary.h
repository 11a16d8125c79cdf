// Naive twins of the binary family, by name, with broadcasting.
#pragma once

#include <string>

#include "tests/reference/array.h"

namespace reference {

// "add", "maximum", "lt" (1 or 0), ...; throws std::invalid_argument for a name without a line in binary.cpp, and for
// shapes that do not broadcast.
Array binary(const std::string& name, const Array& a, const Array& b);

}  // namespace reference
