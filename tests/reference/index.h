// Naive twins of the index family. Ids and masks are doubles.
#pragma once

#include <cstdint>

#include "tests/reference/array.h"

namespace reference {

Array gather(const Array& x, int dim, const Array& index);
Array index_select(const Array& x, int dim, const Array& ids);
Array embedding(const Array& weight, const Array& ids);
Array one_hot(const Array& ids, std::int64_t classes);
Array masked_fill(const Array& x, const Array& mask, double value);

}  // namespace reference
