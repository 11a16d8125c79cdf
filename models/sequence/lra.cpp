#include "models/sequence/lra.h"

#include <algorithm>
#include <cmath>

#include "engine/error.h"
#include "engine/format.h"
#include "ops/binary.h"
#include "ops/copy.h"
#include "ops/precision.h"
#include "ops/reduce.h"
#include "ops/unary.h"
#include "ops/view.h"

namespace polygrad {

namespace {

constexpr double kEmbeddingStd = 0.02;

void check(bool right, const char* key, const std::string& text) {
  if (!right) throw ConfigError(format("[{}] {}", key, text));
}

void check_positive(const char* key, std::int64_t value) {
  check(value >= 1, key, format("expected at least 1, got {}", value));
}

void check_rate(const char* key, double value) {
  check(value >= 0 && value < 1, key, format("expected a probability 0 <= p < 1, got {}", value));
}

// What Attention does not check itself.
const LraConfig& checked(const LraConfig& c) {
  check_positive("data.text_length", c.length);
  check_positive("model.embed_dim", c.embed_dim);
  check_positive("model.depth", c.depth);
  check_positive("model.num_classes", c.num_classes);
  check(c.length <= c.positions, "data.text_length",
        format("{} tokens, and a position table of {} rows; expected at most as many", c.length, c.positions));
  check(c.towers == 1 || c.towers == 2, "model.name", format("expected 1 or 2 towers, got {}", c.towers));
  check(std::isfinite(c.mlp_ratio) && c.mlp_ratio * static_cast<double>(c.embed_dim) >= 1, "model.mlp_ratio",
        format("expected a hidden width of at least 1, got {:g} x {}", c.mlp_ratio, c.embed_dim));
  check_rate("model.dropout", c.dropout);
  check_rate("model.drop_path", c.drop_path);
  check_rate("attention.dropout", c.attention_dropout);
  check(c.phi.size() == 1 || static_cast<std::int64_t>(c.phi.size()) == c.depth, "attention.phi",
        format("expected one activation, or one for each of the {} layers, got {}", c.depth, c.phi.size()));
  return c;
}

std::int64_t hidden_width(const LraConfig& c) {
  return static_cast<std::int64_t>(static_cast<double>(c.embed_dim) * c.mlp_ratio);
}

// [x0, x1, x0 * x1, x0 - x1] for two towers.
std::int64_t features(const LraConfig& c) { return c.towers == 1 ? c.embed_dim : 4 * c.embed_dim; }

}  // namespace

LraBlock::LraBlock(const LraConfig& config, const AttentionConfig& attention, double drop_path)
    : norm1_(child<LayerNorm>("norm1", config.embed_dim, config.norm_eps)),
      mha_(child<Attention>("mha", config.embed_dim, config.num_heads, attention)),
      drop_path1_(child<DropPath>("drop_path1", drop_path)),
      norm2_(child<LayerNorm>("norm2", config.embed_dim, config.norm_eps)),
      mlp_(child<Mlp>("mlpblock", config.embed_dim, hidden_width(config), config.dropout,
                      Mlp::Style{.first = "0", .second = "3", .vision = false})),
      drop_path2_(child<DropPath>("drop_path2", drop_path)) {}

Tensor LraBlock::forward(const Tensor& x, const ForwardContext& context, const TokenMask& mask) const {
  const Scope scope(name());
  const Tensor attended = mha_.forward_residual(x, norm1_, drop_path1_, context, mask);
  return mlp_.forward_residual(attended, norm2_, drop_path2_, context);
}

LraEmbeddings::LraEmbeddings(const LraConfig& config)
    : word_(child<Embedding>("word_embeddings", config.vocabulary, config.embed_dim, Init::normal(kEmbeddingStd))),
      position_(
          child<Embedding>("position_embeddings", config.positions, config.embed_dim, Init::normal(kEmbeddingStd))),
      dropout_(child<Dropout>("dropout", config.dropout)) {}

Tensor LraEmbeddings::forward(const Tensor& ids, const ForwardContext& context) const {
  const Scope scope(name());
  const Tensor words = word_.forward(ids);                             // (rows, length, dim)
  const Tensor places = slice(position_.weight(), 0, 0, ids.size(1));  // (length, dim)
  return dropout_.forward(add(words, places), context);
}

LraEncoder::LraEncoder(const LraConfig& config)
    : embeddings_(child<LraEmbeddings>("embeddings", config)),
      blocks_([&] {
        std::vector<LraBlock*> blocks;
        for (std::int64_t i = 0; i < config.depth; ++i) {
          AttentionConfig attention;
          attention.phi = config.phi[config.phi.size() == 1 ? 0 : static_cast<std::size_t>(i)];
          attention.divisor = resolve_divisor(config.scale, attention.phi, config.length);
          attention.path = config.path;
          attention.dropout = config.attention_dropout;
          attention.proj_dropout = config.dropout;
          attention.layer = static_cast<int>(i + 1);
          attention.separate = true;
          const double rate = drop_path_rate(config.drop_path, i, config.depth);
          blocks.push_back(&child<LraBlock>(format("transformer_{}", i), config, attention, rate));
        }
        return blocks;
      }()),
      norm_(child<LayerNorm>("norm", config.embed_dim, config.norm_eps)) {}

Tensor LraEncoder::forward(const TokenRows& rows, const ForwardContext& context) const {
  const Scope scope(name());
  Tensor x = embeddings_.forward(rows.ids, context);
  for (const LraBlock* block : blocks_) x = block->forward(x, context, rows.mask);
  const PrecisionGuard guard(Precision::f32);  // what is averaged next
  return norm_.forward(x);
}

LraHead::LraHead(std::int64_t in, std::int64_t hidden, std::int64_t classes)
    : first_(child<Linear>("mlpblock.0", in, hidden)), second_(child<Linear>("mlpblock.2", hidden, classes)) {}

Tensor LraHead::forward(const Tensor& x) const {
  const Scope scope(name());
  const PrecisionGuard guard(Precision::f32);  // few rows: the scores are worth it
  return second_.forward(relu(first_.forward(x)));
}

Lra::Lra(const LraConfig& config)
    : config_(checked(config)),
      encoder_(child<LraEncoder>("model", config_)),
      head_(child<LraHead>("seq_classifer", features(config_), hidden_width(config_), config_.num_classes)) {
  for (const LraBlock* block : encoder_.blocks()) {
    try {
      block->attention().choose(config_.length, config_.length);
    } catch (const ValueError& error) {
      throw ConfigError(format("[attention.path] {}", error.what()));
    }
  }
}

TokenRows Lra::prepare(const Tensor& tokens) const {
  const Tensor given = tokens.to(Device::cpu()).contiguous();
  if (given.dtype() != DType::i64 || given.dim() != 2) {
    throw ShapeError(format("[lra] tokens are {}; expected i64 (batch, towers, length)", describe(tokens)));
  }
  const std::int64_t rows = given.size(0), length = given.size(1);
  if (length > config_.positions) {
    throw ShapeError(format("[lra] sequences of {} tokens; expected at most {}, the rows of the position table", length,
                            config_.positions));
  }
  TensorOptions mask_options;
  mask_options.dtype = DType::boolean;
  Tensor ids = Tensor::empty(given.shape(), given.options());
  Tensor visible = Tensor::empty(given.shape(), mask_options), shares = Tensor::empty({rows, length, 1});
  const std::int64_t* from = given.data<std::int64_t>();
  std::int64_t* to = ids.data<std::int64_t>();
  bool* is_visible = visible.data<bool>();
  float* share = shares.data<float>();
  const std::int64_t least = config_.mask_zero ? 1 : 0;
  bool all = true;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < length; ++i) {
      to[i] = std::max<std::int64_t>(from[i], 0);
      is_visible[i] = from[i] >= least;
      count += is_visible[i] ? 1 : 0;
    }
    const std::int64_t whole = config_.pool_over_padding ? config_.length : std::max<std::int64_t>(count, 1);
    for (std::int64_t i = 0; i < length; ++i) share[i] = is_visible[i] ? 1.0f / static_cast<float>(whole) : 0.0f;
    all = all && count == length;
    from += length;
    to += length;
    is_visible += length;
    share += length;
  }
  const Tensor& like = encoder_.norm().parameters().weight;
  TokenRows result{.ids = ids.to(like.device()), .mask = {}, .shares = shares.to(like.device()).to(like.dtype())};
  if (!all) result.mask.visible = visible.to(like.device());
  return result;
}

Tensor Lra::encode(const TokenRows& rows, const ForwardContext& context) const {
  return sum(mul(encoder_.forward(rows, context), rows.shares), {1});
}

Tensor Lra::forward(const Tensor& tokens, const ForwardContext& context) const {
  const Scope scope(name());
  if (!tokens.defined() || tokens.dim() != 3 || tokens.size(1) != config_.towers) {
    throw ShapeError(format("[lra] tokens are {}; expected i64 (batch, {} towers, length)",
                            tokens.defined() ? describe(tokens) : "undefined", config_.towers));
  }
  const std::int64_t batch = tokens.size(0), towers = config_.towers;
  // The towers of a sample stand below each other, so that its dropout masks do not depend on the batch.
  ForwardContext rows_context = context;
  rows_context.first_sample = context.first_sample * towers;
  const TokenRows rows = prepare(reshape(tokens, {batch * towers, tokens.size(2)}));
  const Tensor pooled = encode(rows, rows_context);  // (batch * towers, dim)
  if (towers == 1) return head_.forward(pooled);
  const Tensor pairs = reshape(pooled, {batch, towers, config_.embed_dim});
  const Tensor first = select(pairs, 1, 0), second = select(pairs, 1, 1);
  return head_.forward(cat({first, second, mul(first, second), sub(first, second)}, 1));
}

std::vector<const Attention*> Lra::attention_layers() const {
  std::vector<const Attention*> layers;
  for (const LraBlock* block : encoder_.blocks()) layers.push_back(&block->attention());
  return layers;
}

std::vector<LayerSummary> Lra::layers(std::int64_t batch) const {
  const std::int64_t rows_in = batch * config_.towers, n = config_.length, dim = config_.embed_dim;
  std::vector<LayerSummary> rows;
  const auto linear = [&](std::string path, std::int64_t count, std::int64_t in, const Shape& output) {
    const std::int64_t out = output.back();
    rows.push_back({std::move(path), output, static_cast<std::uint64_t>(in * out + out), count * in * out});
  };
  const auto norm = [&](std::string path) {
    rows.push_back({std::move(path), {rows_in, n, dim}, static_cast<std::uint64_t>(2 * dim), 0});
  };
  rows.push_back({"model.embeddings",
                  {rows_in, n, dim},
                  static_cast<std::uint64_t>((config_.vocabulary + config_.positions) * dim),
                  0});
  for (const LraBlock* block : encoder_.blocks()) {
    const Attention& attention = block->attention();
    const std::string path = block->path(), inner = attention.path();
    const bool linear_path = attention.choose(n, n).path == AttentionPath::linear;
    norm(path + ".norm1");
    linear(inner + ".W_q, W_k, W_v", rows_in * n, dim, {rows_in, n, 3 * dim});
    // q k^T and P v, or k^T v and q (k^T v): two products for each head.
    rows.push_back({inner, {rows_in, n, dim}, 0, 2 * rows_in * n * dim * (linear_path ? attention.head_dim() : n)});
    linear(inner + ".ff", rows_in * n, dim, {rows_in, n, dim});
    norm(path + ".norm2");
    linear(path + ".mlpblock.0", rows_in * n, dim, {rows_in, n, block->hidden()});
    linear(path + ".mlpblock.3", rows_in * n, block->hidden(), {rows_in, n, dim});
  }
  norm("model.norm");
  const std::int64_t hidden = hidden_width(config_);
  linear("seq_classifer.mlpblock.0", batch, features(config_), {batch, hidden});
  linear("seq_classifer.mlpblock.2", batch, hidden, {batch, config_.num_classes});
  return rows;
}

}  // namespace polygrad
