// Attention with any activation: the operation that this library is about.
//
//     S = q kᵀ · score_scale (+ bias)        P = φ(S) / divisor        masks multiply P        O = P v
//
// Where this stands: a family of ops/ (front here and in attention.cpp; probes in attention_norms.cpp). Source:
// "Rethinking Softmax: Self-Attention with Polynomial Activations" (arXiv 2410.18613), eq. 3.3. Read next:
// ops/kernels/attention_activation.h (every φ, and how to add one), ops/kernels/attention.h (the kernels' signatures),
// ops/cpu/attention_tiled.cpp (the path that runs), docs/attention.md (formulas and costs on one page).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generator.h"
#include "engine/tensor.h"

namespace polygrad {

// --- φ --------------------------------------------------------------------------------------------------------------

// Which φ: softmax (over the keys of a row), or an elementwise function of ops/kernels/attention_activation.h. A small
// value; make one with parse_activation, Activation::softmax() or Activation::power(p).
struct Activation {
  std::int32_t id = -1;  // position in the list of elementwise functions; -1: softmax

  static Activation softmax() { return {}; }
  static Activation power(int p);  // s^p, 1 <= p <= 9; else ValueError

  bool is_softmax() const { return id < 0; }
  int power() const;  // p where φ is s^p, else 0
  bool operator==(const Activation&) const = default;
};

// "softmax", "x" (also "x1"), "x2", "x3", "x^p" for p = 1 ... 9, "relu", "elu", "gelu" (erf form), "tanh", "exp" (e^s),
// "exp_neg" (e^-s, the paper's Exp). Throws ConfigError naming all of them for anything else.
Activation parse_activation(std::string_view name);
// The inverse; "x^4" for the powers above 3.
std::string to_string(Activation activation);
// All of them, softmax first: for tests and tables.
std::vector<Activation> all_activations();
// "softmax, x, x2, x3, x^p (p = 1 ... 9), relu, ...": for messages and help texts.
std::string activation_names();

// --- how ------------------------------------------------------------------------------------------------------------

enum class AttentionPath : std::uint8_t {
  automatic,     // "auto": tiled, or linear where φ is x, it is allowed, and it takes fewer operations
  tiled,         // blocks of S in the cache; no N x N buffer, forward or backward (which recomputes); exact
  linear,        // φ = x only: q (kᵀ v), exact, O(N d²); ValueError with a bias, regions or dropout
  materialised,  // stores P: the reference
};
const char* to_string(AttentionPath path);
// "auto", "tiled", "linear", "materialised"; ConfigError for anything else.
AttentionPath parse_attention_path(std::string_view name);

struct AttentionParams {
  Activation phi;
  double divisor = 1;              // c, applied outside φ; finite and not 0. softmax ignores it
  double score_scale = 0;          // 0: 1/sqrt(d)
  double dropout = 0;              // probability, 0 <= p < 1; on P after the masks, kept entries times 1/(1 - p).
                                   // Rounded to a multiple of 1/65536: an entry is decided by 16 random bits
  Generator* generator = nullptr;  // needed where dropout > 0; one stream is taken
  AttentionPath path = AttentionPath::automatic;
};

// All are optional (undefined). A hidden pair has P = 0 and passes no gradient; softmax also leaves it out of the
// normalisation. A row with every pair hidden gives exactly 0 and zero gradients. Hidden rows of k and v must hold
// finite numbers.
struct AttentionMasks {
  Tensor bias;        // (1|G, H, Nq, Nk), q's dtype, inside φ, differentiable; batch b uses b % G
  Tensor key_mask;    // bool (B, Nk): false hides the key
  Tensor query_mask;  // bool (B, Nq): false: a row nobody reads; it comes out 0 and costs nothing
  Tensor regions;     // i32 (G, N), N = Nq = Nk: a pair is allowed iff its ids are equal; batch b uses b % G
};

// What runs, and why, for start reports: "linear: 34 M multiply-adds instead of 134 M". `bias` and `regions` say
// whether the masks have them. Throws ValueError where params.path names one that cannot do it.
struct AttentionChoice {
  AttentionPath path;  // never automatic
  std::string why;
};
AttentionChoice choose_attention_path(const AttentionParams& params, std::int64_t queries, std::int64_t keys,
                                      std::int64_t head_dim, bool bias, bool regions);

// --- the operations -------------------------------------------------------------------------------------------------

// q (B, H, Nq, d), k and v (B, H, Nk, d), f32 or f64, any strides -> (B, Nq, H·d). Nq = 1: class attention.
// Under a PrecisionGuard (precision.h) q, k and v are f32 or bf16 (f16) and the result bf16 (f16); φ, the sums and the
// bias f32. Gradient, with G = dO of the head, M the masks, Z the dropout factors:
//     dV = (M∘Z∘φ(S)/c)ᵀ G      dP = M∘Z∘(G vᵀ)      dS = dP∘φ'(S)/c      (softmax: dS = P∘(dP - rowsum(P∘dP)))
//     dq = score_scale · dS k    dk = score_scale · dSᵀ q    dbias = dS, summed over the batches that share it
// Throws ShapeError, DTypeError, DeviceError, ValueError.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionParams& params,
                 const AttentionMasks& masks = {});

// The same for packed rows: qkv (B, N, 3, H, d), any strides -> (B, N, H·d). Read in place; the backward writes one
// gradient of qkv's shape.
Tensor attention_qkv(const Tensor& qkv, const AttentionParams& params, const AttentionMasks& masks = {});

// P without dropout, (B, H, Nq, Nk): for looking at; not differentiable.
Tensor attention_map(const Tensor& q, const Tensor& k, const AttentionParams& params, const AttentionMasks& masks = {});

// Frobenius norms for each (batch, head), f64 (B, H): of P, and of its Jacobians. W_q, W_k (D, d) are the head's
// projections, q = x W_q + b; so the last two are the attention map's sensitivity to the weights. Not differentiable.
struct AttentionNorms {
  Tensor a;    // ‖P‖
  Tensor j_s;  // ‖dP/dS‖
  Tensor j_q;  // ‖dP/dW_q‖
  Tensor j_k;  // ‖dP/dW_k‖
};
// x (B, N, D): the rows that were projected (the layer norm's output); q and k (B, H, N, d). Dropout is left out;
// params.path is ignored: φ = x without bias and regions costs O(N (d² + D)), the others O(N² (d + D)), in f64, without
// an N x N buffer.
AttentionNorms attention_norms(const Tensor& x, const Tensor& q, const Tensor& k, const AttentionParams& params,
                               const AttentionMasks& masks = {});

}  // namespace polygrad
