// Attention: multi-head self-attention with any activation, as a module: qkv projection, attention, output projection.
//
//   qkv = x W_qkv + b: output index which * D + head * d + channel, which = 0, 1, 2 for q, k, v (timm's packing)
//   S = q k^T / sqrt(d);  P = phi(S) / c;  y = (P v, heads side by side) W_proj + b
//
// Or with separate projections W_q, W_k, W_v and "ff" in place of "proj": the Long Range Arena's names. They are packed
// for each forward, so that the computation is the same one.
//
// Where this stands: above ops/attention.h, which has the mathematics. An AttentionObserver sees what went in.
// Read next: vision/vit.h.
#pragma once

#include <string_view>

#include "models/nn/dropout.h"
#include "models/nn/layer_norm.h"
#include "models/nn/linear.h"
#include "ops/attention.h"

namespace polygrad {

struct AttentionConfig {
  Activation phi;
  double divisor = 1;  // c, a number: see resolve_divisor
  AttentionPath path = AttentionPath::automatic;
  double dropout = 0;       // of P
  double proj_dropout = 0;  // after the output projection
  int layer = 1;            // which attention of the model this is, from 1: for logs
  // Parameters W_q, W_k, W_v and ff, which start as torch's Linear does, in place of qkv and proj, which start as the
  // vision transformers'.
  bool separate = false;
};

// Tokens that are none: the same rows for keys and queries, bool (batch, tokens). What is hidden passes nothing on, and
// its own result is the residual branch's for a zero: finite, and nobody's to read. Undefined: all are there.
struct TokenMask {
  Tensor visible;
};

// c as a configuration writes it: a positive number, "sqrt_n", "n", or "auto" (sqrt_n for every x^p, 1 for the others).
// `keys` is n: the number of keys of one attention matrix, the class token not counted. softmax gets 1, whatever is
// written, if it can be read. Throws ConfigError naming attention.scale.
double resolve_divisor(std::string_view text, Activation phi, std::int64_t keys);

class Attention : public Module {
 public:
  // Throws ConfigError where the heads do not divide dim.
  Attention(std::int64_t dim, std::int64_t heads, const AttentionConfig& config);
  // (batch, tokens, dim) -> the same shape.
  Tensor forward(const Tensor& x, const ForwardContext& context = {}, const TokenMask& mask = {}) const;
  // drop_path.add(x, forward(norm.forward(x))): the attention half of a block, fused at both ends.
  Tensor forward_residual(const Tensor& x, const LayerNorm& norm, const DropPath& drop_path,
                          const ForwardContext& context = {}, const TokenMask& mask = {}) const;
  // The first token's row of forward_residual, (batch, 1, dim), by itself: its query against all keys. The same numbers
  // and gradients, for a last block of which nothing else is used.
  Tensor forward_residual_first(const Tensor& x, const LayerNorm& norm, const DropPath& drop_path,
                                const ForwardContext& context = {}) const;

  const AttentionConfig& config() const { return config_; }
  std::int64_t dim() const { return dim_; }
  std::int64_t heads() const { return heads_; }
  std::int64_t head_dim() const { return dim_ / heads_; }
  // Which path a training forward takes with so many queries and keys, and why. Throws ValueError where the configured
  // one can't.
  AttentionChoice choose(std::int64_t queries, std::int64_t keys) const;

 private:
  AttentionParams params(const ForwardContext& context, Generator& stream) const;
  Linear* projection(const char* name);
  LinearParameters packed() const;                                             // of q, k and v, one below the other
  void show(const Tensor& x, const Tensor& qkv, const TokenMask& mask) const;  // to the observer
  Tensor add_projected(const Tensor& x, const Tensor& heads, const DropPath& drop_path,
                       const ForwardContext& context) const;

  std::int64_t dim_, heads_;
  AttentionConfig config_;
  Linear* qkv_ = nullptr;  // or else the three
  Linear* separate_[3] = {};
  Dropout& attn_drop_;  // only its stream: the mask is drawn inside the attention op
  Linear& proj_;
  Dropout& proj_drop_;
};

// What one attention was given: outside the graph, on the same memory, not copied.
struct AttentionCall {
  const Attention& layer;
  Tensor x;                // (batch, tokens, dim): what was projected
  Tensor q, k;             // (batch, heads, tokens, head_dim), views of the packed projection
  AttentionParams params;  // without dropout
  AttentionMasks masks;
};

// Sees every attention of its thread's forwards while an AttentionObserverGuard lives. Without one a
// forward pays one comparison with null.
class AttentionObserver {
 public:
  virtual ~AttentionObserver() = default;
  virtual void observe(const AttentionCall& call) = 0;
};

bool attention_observed();  // whether this thread has one

class AttentionObserverGuard {
 public:
  explicit AttentionObserverGuard(AttentionObserver& observer);
  ~AttentionObserverGuard();
  AttentionObserverGuard(const AttentionObserverGuard&) = delete;
  AttentionObserverGuard& operator=(const AttentionObserverGuard&) = delete;

 private:
  AttentionObserver* previous_;
};

}  // namespace polygrad
