// Naive twins of the view family.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/array.h"

namespace reference {

using Index = std::vector<std::int64_t>;

// The first index in row-major order is all zeros; next() moves on to the following one, false after the last.
bool next(Index& index, const Index& shape);
// The element of x at an index.
double& at(Array& x, const Index& index);
double at(const Array& x, const Index& index);

Array reshape(const Array& x, const Index& shape);
Array permute(const Array& x, const std::vector<int>& dims);
Array slice(const Array& x, int dim, std::int64_t start, std::int64_t end, std::int64_t step);
Array select(const Array& x, int dim, std::int64_t index);
Array expand(const Array& x, const Index& shape);

}  // namespace reference
