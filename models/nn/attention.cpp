#include "models/nn/attention.h"

#include <charconv>
#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
#include "ops/copy.h"
#include "ops/matmul.h"
#include "ops/pre_norm.h"
#include "ops/view.h"

namespace polygrad {

namespace {

thread_local AttentionObserver* current_observer = nullptr;

std::int64_t checked_heads(std::int64_t dim, std::int64_t heads) {
  if (dim < 1 || heads < 1 || dim % heads != 0) {
    throw ConfigError(
        format("[model.num_heads] the heads do not divide the width: embed_dim {}, num_heads {}; expected a num_heads "
               "that divides embed_dim",
               dim, heads));
  }
  return heads;
}

AttentionMasks masks_of(const TokenMask& mask) {
  AttentionMasks masks;
  masks.key_mask = masks.query_mask = mask.visible;
  return masks;
}

}  // namespace

double resolve_divisor(std::string_view text, Activation phi, std::int64_t keys) {
  const double n = static_cast<double>(keys);
  double divisor = 1;
  if (text == "sqrt_n" || (text == "auto" && phi.power() > 0)) {
    divisor = std::sqrt(n);
  } else if (text == "n") {
    divisor = n;
  } else if (text != "auto") {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), divisor);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(divisor) || divisor <= 0) {
      throw ConfigError(
          format("[attention.scale] unknown divisor '{}'; expected a positive number, sqrt_n, n or auto", text));
    }
  }
  return phi.is_softmax() ? 1 : divisor;
}

Attention::Attention(std::int64_t dim, std::int64_t heads, const AttentionConfig& config)
    : dim_(dim),
      heads_(checked_heads(dim, heads)),
      config_(config),
      qkv_(config.separate ? nullptr : &child<Linear>("qkv", dim, 3 * dim, LinearInit::vision())),
      separate_{projection("W_q"), projection("W_k"), projection("W_v")},
      attn_drop_(child<Dropout>("attn_drop", config.dropout)),
      proj_(config.separate ? child<Linear>("ff", dim, dim) : child<Linear>("proj", dim, dim, LinearInit::vision())),
      proj_drop_(child<Dropout>("proj_drop", config.proj_dropout)) {}

Linear* Attention::projection(const char* name) {
  return config_.separate ? &child<Linear>(name, dim_, dim_) : nullptr;
}

LinearParameters Attention::packed() const {
  if (qkv_ != nullptr) return qkv_->parameters();
  std::vector<Tensor> weights, biases;
  for (const Linear* linear : separate_) {
    weights.push_back(linear->weight());
    biases.push_back(linear->bias());
  }
  return {cat(weights, 0), cat(biases, 0)};
}

AttentionParams Attention::params(const ForwardContext& context, Generator& stream) const {
  AttentionParams params;
  params.phi = config_.phi;
  params.divisor = config_.divisor;
  params.path = config_.path;
  if (context.training) {
    params.dropout = config_.dropout;
    params.generator = &stream;
  }
  return params;
}

void Attention::show(const Tensor& x, const Tensor& qkv, const TokenMask& mask) const {
  const NoGradGuard no_grad;
  const DType dtype = proj_.weight().dtype();  // and not that of products, which no observer needs to know
  const Tensor packed = permute(qkv.detach().to(dtype), {2, 0, 3, 1, 4});  // (3, batch, heads, tokens, head_dim)
  Generator unused;
  current_observer->observe(
      {*this, x.detach().to(dtype), select(packed, 0, 0), select(packed, 0, 1), params({}, unused), masks_of(mask)});
}

Tensor Attention::add_projected(const Tensor& x, const Tensor& heads, const DropPath& drop_path,
                                const ForwardContext& context) const {
  if (proj_drop_.drops(context)) {
    return drop_path.add(x, proj_drop_.forward(proj_.forward(heads), context), context);
  }
  Generator stream = drop_path.generator(context);
  return linear_residual(x, heads, proj_.parameters(), {drop_path.rate(context), &stream});
}

Tensor Attention::forward(const Tensor& x, const ForwardContext& context, const TokenMask& mask) const {
  const Scope scope(name());
  const LinearParameters all = packed();
  const Tensor projected = linear(x, all.weight, all.bias);  // (batch, tokens, 3 * dim)
  const Tensor qkv = reshape(projected, {x.size(0), x.size(1), 3, heads_, head_dim()});
  if (attention_observed()) show(x, qkv, mask);
  Generator stream = attn_drop_.generator(context);
  const Tensor heads = attention_qkv(qkv, params(context, stream), masks_of(mask));  // (batch, tokens, dim)
  return proj_drop_.forward(proj_.forward(heads), context);
}

Tensor Attention::forward_residual(const Tensor& x, const LayerNorm& norm, const DropPath& drop_path,
                                   const ForwardContext& context, const TokenMask& mask) const {
  const Scope scope(name());
  const Tensor projected = pre_norm_linear(x, norm.parameters(), packed());  // (batch, tokens, 3 * dim)
  const Tensor qkv = reshape(projected, {x.size(0), x.size(1), 3, heads_, head_dim()});
  if (attention_observed()) {
    const NoGradGuard no_grad;
    show(norm.forward(x), qkv, mask);
  }
  Generator stream = attn_drop_.generator(context);
  const Tensor heads = attention_qkv(qkv, params(context, stream), masks_of(mask));  // (batch, tokens, dim)
  return add_projected(x, heads, drop_path, context);
}

Tensor Attention::forward_residual_first(const Tensor& x, const LayerNorm& norm, const DropPath& drop_path,
                                         const ForwardContext& context) const {
  const Scope scope(name());
  const std::int64_t batch = x.size(0), tokens = x.size(1);
  const Tensor first = slice(x, 1, 0, 1);  // (batch, 1, dim)
  const LinearParameters all = packed();
  const auto rows = [&](std::int64_t begin, std::int64_t end) {
    return LinearParameters{slice(all.weight, 0, begin, end), slice(all.bias, 0, begin, end)};
  };
  const Tensor query = pre_norm_linear(first, norm.parameters(), rows(0, dim_));
  const Tensor keys_values = pre_norm_linear(x, norm.parameters(), rows(dim_, 3 * dim_));
  const Tensor q = reshape(query, {batch, heads_, 1, head_dim()});  // one token: as (batch, 1, heads, head_dim)
  const Tensor kv = permute(reshape(keys_values, {batch, tokens, 2, heads_, head_dim()}), {2, 0, 3, 1, 4});
  if (attention_observed()) {  // it sees what a block that is not cut would have
    const NoGradGuard no_grad;
    const Tensor normalised = norm.forward(x);
    const Tensor projected = linear(normalised, all.weight, all.bias);
    show(normalised, reshape(projected, {batch, tokens, 3, heads_, head_dim()}), {});
  }
  Generator stream = attn_drop_.generator(context);
  const Tensor heads = attention(q, select(kv, 0, 0), select(kv, 0, 1), params(context, stream));
  return add_projected(first, heads, drop_path, context);
}

AttentionChoice Attention::choose(std::int64_t queries, std::int64_t keys) const {
  AttentionParams params;
  params.phi = config_.phi;
  params.divisor = config_.divisor;
  params.path = config_.path;
  params.dropout = config_.dropout;
  return choose_attention_path(params, queries, keys, head_dim(), false, false);
}

bool attention_observed() { return current_observer != nullptr; }

AttentionObserverGuard::AttentionObserverGuard(AttentionObserver& observer) : previous_(current_observer) {
  current_observer = &observer;
}

AttentionObserverGuard::~AttentionObserverGuard() { current_observer = previous_; }

}  // namespace polygrad
