#include "models/nn/attention.h"

#include <charconv>
#include <cmath>

#include "engine/autograd.h"
#include "engine/error.h"
#include "engine/format.h"
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
      qkv_(child<Linear>("qkv", dim, 3 * dim, LinearInit::vision())),
      attn_drop_(child<Dropout>("attn_drop", config.dropout)),
      proj_(child<Linear>("proj", dim, dim, LinearInit::vision())),
      proj_drop_(child<Dropout>("proj_drop", config.proj_dropout)) {}

Tensor Attention::forward(const Tensor& x, const ForwardContext& context) const {
  const Scope scope(name());
  const Tensor projected = qkv_.forward(x);  // (batch, tokens, 3 * dim)
  const Tensor qkv = reshape(projected, {x.size(0), x.size(1), 3, heads_, head_dim()});
  AttentionParams params;
  params.phi = config_.phi;
  params.divisor = config_.divisor;
  params.path = config_.path;
  if (current_observer != nullptr) {
    const NoGradGuard no_grad;
    const Tensor packed = permute(qkv.detach(), {2, 0, 3, 1, 4});  // (3, batch, heads, tokens, head_dim)
    current_observer->observe({*this, x.detach(), select(packed, 0, 0), select(packed, 0, 1), params});
  }
  Generator stream = attn_drop_.generator(context);
  if (context.training) {
    params.dropout = config_.dropout;
    params.generator = &stream;
  }
  const Tensor heads = attention_qkv(qkv, params);  // (batch, tokens, dim)
  return proj_drop_.forward(proj_.forward(heads), context);
}

AttentionChoice Attention::choose(std::int64_t tokens) const {
  AttentionParams params;
  params.phi = config_.phi;
  params.divisor = config_.divisor;
  params.path = config_.path;
  params.dropout = config_.dropout;
  return choose_attention_path(params, tokens, tokens, head_dim(), false, false);
}

AttentionObserverGuard::AttentionObserverGuard(AttentionObserver& observer) : previous_(current_observer) {
  current_observer = &observer;
}

AttentionObserverGuard::~AttentionObserverGuard() { current_observer = previous_; }

}  // namespace polygrad
