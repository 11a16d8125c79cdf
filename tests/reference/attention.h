// The naive twin of ops/attention.h: plain loops over f64, one pair at a time; knows nothing of the engine.
//
// φ' is a difference quotient of φ in long double, so a φ is one line here and its derivative is not written twice.
#pragma once

#include <cstdint>
#include <string>

#include "tests/reference/array.h"

namespace reference {

// φ(s) of an elementwise activation by name; throws std::invalid_argument for a name without a line here.
long double phi(const std::string& name, long double s);

struct AttentionSpec {
  std::string phi = "softmax";
  double divisor = 1;
  double score_scale = 0;  // 0: 1/sqrt(d)
  double dropout = 0;
  std::uint64_t seed = 0;  // of the dropout's stream, with offset and first_sample
  std::uint32_t offset = 0;
  std::int64_t first_sample = 0;
  Array bias;        // (G, H, Nq, Nk), or empty
  Array key_mask;    // (B, Nk) of 0 and 1, or empty
  Array query_mask;  // (B, Nq)
  Array regions;     // (G, N)
};

// P before dropout, (B, H, Nq, Nk); q (B, H, Nq, d), k (B, H, Nk, d).
Array attention_map(const Array& q, const Array& k, const AttentionSpec& spec);

// What dropout multiplies P with: 0 or 65536 / (65536 - round(65536 p)), from a Philox4x32-10 of its own.
double attention_dropout_factor(const AttentionSpec& spec, std::int64_t heads, std::int64_t b, std::int64_t h,
                                std::int64_t i, std::int64_t j);

// (B, Nq, H·d)
Array attention(const Array& q, const Array& k, const Array& v, const AttentionSpec& spec);

struct AttentionGradients {
  Array q, k, v, bias;
};
// Of sum(attention(q, k, v) * grad).
AttentionGradients attention_gradients(const Array& q, const Array& k, const Array& v, const AttentionSpec& spec,
                                       const Array& grad);

// For one head without dropout: the norms of P and of its Jacobians with respect to S, W_q and W_k, each Jacobian
// dense, by central differences. x (N, D), w_q and w_k (D, d), b_q and b_k (d). The masks have B = 1.
struct AttentionNorms {
  double a, j_s, j_q, j_k;
};
AttentionNorms attention_norms_by_differences(const Array& x, const Array& w_q, const Array& b_q, const Array& w_k,
                                              const Array& b_k, const AttentionSpec& spec);

}  // namespace reference
