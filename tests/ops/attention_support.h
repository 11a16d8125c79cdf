// What the attention tests share: a case as arrays, run by the library and by the naive twin, and their distance.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/attention.h"
#include "tests/reference/attention.h"

namespace polygrad::testing {

// Normal numbers, rounded to f32 so that both dtypes see the same inputs.
reference::Array random_array(const std::vector<std::int64_t>& shape, std::uint64_t seed, double scale = 1);

struct AttentionCase {
  reference::Array q, k, v, grad;  // (B, H, Nq, d), (B, H, Nk, d) twice, (B, Nq, H·d)
  reference::AttentionSpec spec;
};
// q, k, v and grad of these sizes; the spec is left to the caller.
AttentionCase random_case(std::int64_t batch, std::int64_t heads, std::int64_t queries, std::int64_t keys,
                          std::int64_t head_dim, std::uint64_t seed);

struct AttentionResult {
  reference::Array out, dq, dk, dv, dbias;
};
enum class Packing { separate, packed };  // attention or attention_qkv

AttentionResult run_attention(const AttentionCase& test, DType dtype, AttentionPath path,
                              Packing packing = Packing::separate);
AttentionResult run_twin(const AttentionCase& test);

// The largest of |a - b| / max|b| over the five tensors; empty ones count nothing, NaN counts as infinite.
double distance(const AttentionResult& a, const AttentionResult& b);
double distance(const reference::Array& a, const reference::Array& b);

Tensor tensor_of(const reference::Array& array, DType dtype);
reference::Array array_of(const Tensor& tensor);
AttentionMasks masks_of(const reference::AttentionSpec& spec, DType dtype);

// Row-wise helpers for masks: (rows, n) with a 1 in the first lengths[row] columns.
reference::Array prefix_mask(const std::vector<std::int64_t>& lengths, std::int64_t n);
// (rows, n): each 1 with probability 2/3, column 0 always.
reference::Array random_mask(std::int64_t rows, std::int64_t n, std::uint64_t seed);
// (1, 49): the corner window of a Swin map shifted by 3: the map is cut after 4 of its 7 rows and columns.
reference::Array corner_window();

}  // namespace polygrad::testing
