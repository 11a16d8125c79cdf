// Naive twins of the copy family.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/reference/array.h"

namespace reference {

Array cat(const std::vector<Array>& arrays, int dim);
Array stack(const std::vector<Array>& arrays, int dim);
Array pad(const Array& x, const std::vector<std::pair<std::int64_t, std::int64_t>>& amounts, double value);
Array roll(const Array& x, const std::vector<std::int64_t>& shifts, const std::vector<int>& dims);

}  // namespace reference
