#include "models/vision/vit.h"

#include <cmath>

#include "engine/error.h"
#include "engine/format.h"
#include "ops/binary.h"
#include "ops/copy.h"
#include "ops/precision.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace polygrad {

namespace {

void check(bool right, const char* key, const std::string& text) {
  if (!right) throw ConfigError(format("[{}] {}", key, text));
}

void check_positive(const char* key, std::int64_t value) {
  check(value >= 1, key, format("expected at least 1, got {}", value));
}

void check_rate(const char* key, double value) {
  check(value >= 0 && value < 1, key, format("expected a probability 0 <= p < 1, got {}", value));
}

// What PatchEmbed and Attention do not check themselves.
const VitConfig& checked(const VitConfig& c) {
  for (int i = 0; i < 2; ++i) {
    check_positive("model.image_size", c.image_size[i]);
    check_positive("model.patch_size", c.patch_size[i]);
  }
  check_positive("model.in_channels", c.in_channels);
  check_positive("model.embed_dim", c.embed_dim);
  check_positive("model.depth", c.depth);
  check_positive("model.num_classes", c.num_classes);
  check(std::isfinite(c.mlp_ratio) && c.mlp_ratio * static_cast<double>(c.embed_dim) >= 1, "model.mlp_ratio",
        format("expected a hidden width of at least 1, got {:g} x {}", c.mlp_ratio, c.embed_dim));
  check_rate("model.dropout", c.dropout);
  check_rate("model.drop_path", c.drop_path);
  check_rate("attention.dropout", c.attention_dropout);
  check(c.class_token || c.pool == Pool::mean, "model.pool",
        "'token' reads the class token, and model.class_token is false; expected pool 'mean', or a class token");
  check(c.phi.size() == 1 || static_cast<std::int64_t>(c.phi.size()) == c.depth, "attention.phi",
        format("expected one activation, or one for each of the {} layers, got {}", c.depth, c.phi.size()));
  return c;
}

// (1, tokens, dim): one position for each patch, and one for the class token.
Shape position_shape(const VitConfig& c) {
  const std::int64_t patches = (c.image_size[0] / c.patch_size[0]) * (c.image_size[1] / c.patch_size[1]);
  return {1, patches + (c.class_token ? 1 : 0), c.embed_dim};
}

}  // namespace

VitBlock::VitBlock(const VitConfig& config, const AttentionConfig& attention, double drop_path)
    : norm1_(child<LayerNorm>("norm1", config.embed_dim, config.norm_eps)),
      attn_(child<Attention>("attn", config.embed_dim, config.num_heads, attention)),
      drop_path1_(child<DropPath>("drop_path1", drop_path)),
      norm2_(child<LayerNorm>("norm2", config.embed_dim, config.norm_eps)),
      mlp_(child<Mlp>("mlp", config.embed_dim,
                      static_cast<std::int64_t>(static_cast<double>(config.embed_dim) * config.mlp_ratio),
                      config.dropout)),
      drop_path2_(child<DropPath>("drop_path2", drop_path)) {}

Tensor VitBlock::forward(const Tensor& x, const ForwardContext& context) const {
  const Scope scope(name());
  const Tensor attended = attn_.forward_residual(x, norm1_, drop_path1_, context);
  return mlp_.forward_residual(attended, norm2_, drop_path2_, context);
}

Tensor VitBlock::forward_first(const Tensor& x, const ForwardContext& context) const {
  const Scope scope(name());
  const Tensor attended = attn_.forward_residual_first(x, norm1_, drop_path1_, context);
  return mlp_.forward_residual(attended, norm2_, drop_path2_, context);
}

Vit::Vit(const VitConfig& config)
    : config_(checked(config)),
      cls_token_(config_.class_token
                     ? &parameter("cls_token", {1, 1, config_.embed_dim}, Init::normal(config_.class_token_std))
                     : nullptr),
      pos_embed_(parameter("pos_embed", position_shape(config_), Init::normal(0.02))),
      patch_embed_(child<PatchEmbed>("patch_embed", config_.image_size, config_.patch_size, config_.in_channels,
                                     config_.embed_dim)),
      pos_drop_(child<Dropout>("pos_drop", config_.dropout)),
      blocks_([&] {
        std::vector<VitBlock*> blocks;
        for (std::int64_t i = 0; i < config_.depth; ++i) {
          AttentionConfig attention;
          attention.phi = config_.phi[config_.phi.size() == 1 ? 0 : static_cast<std::size_t>(i)];
          attention.divisor = resolve_divisor(config_.scale, attention.phi, patch_embed_.tokens());
          attention.path = config_.path;
          attention.dropout = config_.attention_dropout;
          attention.proj_dropout = config_.dropout;
          attention.layer = static_cast<int>(i + 1);
          const double rate = drop_path_rate(config_.drop_path, i, config_.depth);
          blocks.push_back(&child<VitBlock>(format("blocks.{}", i), config_, attention, rate));
        }
        return blocks;
      }()),
      norm_(child<LayerNorm>(config_.pool == Pool::mean ? "fc_norm" : "norm", config_.embed_dim, config_.norm_eps)),
      head_(child<Linear>("head", config_.embed_dim, config_.num_classes, LinearInit::vision())) {
  for (const VitBlock* block : blocks_) {
    try {
      block->attention().choose(attention_queries(block->attention()), tokens());
    } catch (const ValueError& error) {
      throw ConfigError(format("[attention.path] {}", error.what()));
    }
  }
}

Tensor Vit::embed(const Tensor& images, const ForwardContext& context) const {
  Tensor x = patch_embed_.forward(images);  // (batch, patches, dim)
  if (cls_token_ != nullptr) {
    x = cat({expand(*cls_token_, {x.size(0), 1, config_.embed_dim}), x}, 1);  // (batch, 1 + patches, dim)
  }
  return pos_drop_.forward(add(x, pos_embed_), context);
}

Tensor Vit::pooled(const Tensor& x) const {
  if (config_.pool == Pool::token) return select(x, 1, 0);
  return mean(cls_token_ != nullptr ? slice(x, 1, 1) : x, {1});
}

Tensor Vit::classify(const Tensor& x) const {
  // The norm looks at one token at a time, so norming after the choice of the class token is the same, and cheaper.
  // And so few rows that the scores are worth f32, whatever the precision of the products before.
  const PrecisionGuard guard(Precision::f32);
  return head_.forward(norm_.forward(pooled(x)));
}

Tensor Vit::forward(const Tensor& images, const ForwardContext& context) const {
  const Scope scope(name());
  Tensor x = embed(images, context);
  for (const VitBlock* block : blocks_) {
    const bool first_only = block == blocks_.back() && last_block_is_cut();
    x = first_only ? block->forward_first(x, context) : block->forward(x, context);
  }
  return classify(x);
}

Shape Vit::input_shape() const { return {config_.in_channels, config_.image_size[0], config_.image_size[1]}; }

std::vector<PositionTable> Vit::position_tables() const {
  return {{.name = "pos_embed",
           .prefix = cls_token_ != nullptr ? 1 : 0,
           .grid = {config_.image_size[0] / config_.patch_size[0], config_.image_size[1] / config_.patch_size[1]}}};
}

std::vector<const Attention*> Vit::attention_layers() const {
  std::vector<const Attention*> layers;
  for (const VitBlock* block : blocks_) layers.push_back(&block->attention());
  return layers;
}

std::vector<LayerSummary> Vit::layers(std::int64_t batch) const {
  const std::int64_t patches = patch_embed_.tokens(), n = tokens(), dim = config_.embed_dim;
  std::vector<LayerSummary> rows;
  const auto linear = [&](std::string path, std::int64_t rows_in, std::int64_t in, const Shape& output) {
    const std::int64_t out = output.back();
    rows.push_back({std::move(path), output, static_cast<std::uint64_t>(in * out + out), rows_in * in * out});
  };
  const auto norm = [&](std::string path, const Shape& output) {
    rows.push_back({std::move(path), output, static_cast<std::uint64_t>(2 * dim), 0});
  };
  linear("patch_embed", batch * patches, config_.in_channels * config_.patch_size[0] * config_.patch_size[1],
         {batch, patches, dim});
  rows.push_back(
      {"cls_token, pos_embed", {batch, n, dim}, static_cast<std::uint64_t>((n + (cls_token_ ? 1 : 0)) * dim), 0});
  for (const VitBlock* block : blocks_) {
    const Attention& attention = block->attention();
    const std::string path = block->path(), inner = attention.path();
    const std::int64_t queries = attention_queries(attention);
    const bool linear_path = attention.choose(queries, n).path == AttentionPath::linear;
    norm(path + ".norm1", {batch, n, dim});
    linear(inner + ".qkv", batch * n, dim, {batch, n, 3 * dim});
    rows.back().macs -= batch * (n - queries) * dim * dim;
    // q k^T and P v, or k^T v and q (k^T v): two products for each head.
    rows.push_back({inner,
                    {batch, queries, dim},
                    0,
                    linear_path ? batch * (n + queries) * dim * attention.head_dim() : 2 * batch * queries * n * dim});
    linear(inner + ".proj", batch * queries, dim, {batch, queries, dim});
    norm(path + ".norm2", {batch, queries, dim});
    linear(path + ".mlp.fc1", batch * queries, dim, {batch, queries, block->hidden()});
    linear(path + ".mlp.fc2", batch * queries, block->hidden(), {batch, queries, dim});
  }
  norm(norm_.path(), {batch, dim});
  linear("head", batch, dim, {batch, config_.num_classes});
  return rows;
}

}  // namespace polygrad
