// Naive twins of the reduce family.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/reference/array.h"

namespace reference {

// Over the given dimensions (0 <= d), which disappear or stay with size 1.
Array sum(const Array& x, const std::vector<int>& dims, bool keepdim);
Array mean(const Array& x, const std::vector<int>& dims, bool keepdim);
// Over what broadcasting to x's shape would repeat.
Array sum_to_shape(const Array& x, const std::vector<std::int64_t>& shape);
Array amax(const Array& x, int dim, bool keepdim);
Array argmax(const Array& x, int dim);
// Of the last dimension: values, or indices.
Array topk_values(const Array& x, std::int64_t k);
Array topk_indices(const Array& x, std::int64_t k);

}  // namespace reference
