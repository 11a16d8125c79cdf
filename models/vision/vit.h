// Vit: the vision transformer. (Dosovitskiy et al., 2021; names, shapes, order and initialisation are timm's.)
//
//   images -> patches -> tokens (a class token in front) + positions
//   depth x { x += attention(norm1 x);  x += mlp(norm2 x) }        both through DropPath
//   token:  logits = head(norm(class token))
//   mean:   logits = head(fc_norm(mean of the patch tokens))       norm.* is then absent, as in MAE
//
// Read next: deit.h (the same with another start), ../zoo.h (by name).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/nn/layer_norm.h"
#include "models/nn/mlp.h"
#include "models/nn/patch_embed.h"

namespace polygrad {

enum class Pool { token, mean };

struct VitConfig {
  std::array<std::int64_t, 2> image_size = {224, 224};  // height, width
  std::array<std::int64_t, 2> patch_size = {16, 16};
  std::int64_t in_channels = 3;
  std::int64_t embed_dim = 768;
  std::int64_t depth = 12;
  std::int64_t num_heads = 12;
  double mlp_ratio = 4;
  std::int64_t num_classes = 1000;
  bool class_token = true;
  Pool pool = Pool::token;
  double dropout = 0;    // after the position embedding, both projections of a block's MLP, and attention's projection
  double drop_path = 0;  // of the last block; 0 at the first, linear between
  std::vector<Activation> phi = {Activation::softmax()};  // one for all layers, or one for each
  std::string scale = "auto";                             // as in resolve_divisor; n is the number of patches
  AttentionPath path = AttentionPath::automatic;
  double attention_dropout = 0;
  double norm_eps = 1e-6;
  double class_token_std = 1e-6;
  // With pool = token, the last block computes the class token alone: nothing else of it is read, and the logits and
  // gradients are the same. false forbids it, for measurements.
  bool shortcuts = true;
};

class VitBlock : public Module {
 public:
  VitBlock(const VitConfig& config, const AttentionConfig& attention, double drop_path);
  // (batch, tokens, dim) -> the same shape.
  Tensor forward(const Tensor& x, const ForwardContext& context = {}) const;
  // The first token of that, (batch, 1, dim), without computing the others.
  Tensor forward_first(const Tensor& x, const ForwardContext& context = {}) const;
  const Attention& attention() const { return attn_; }
  std::int64_t hidden() const { return mlp_.hidden(); }

 private:
  LayerNorm& norm1_;
  Attention& attn_;
  DropPath& drop_path1_;
  LayerNorm& norm2_;
  Mlp& mlp_;
  DropPath& drop_path2_;
};

class Vit : public Model {
 public:
  // Throws ConfigError, naming key and values, for what can't be built. Parameters are not yet filled: initialize().
  explicit Vit(const VitConfig& config);

  Tensor forward(const Tensor& images, const ForwardContext& context = {}) const override;

  // The stages of forward, for those who look inside: logits = classify(block_depth-1(... block_0(embed(images)))).
  Tensor embed(const Tensor& images, const ForwardContext& context = {}) const;  // (batch, tokens, dim)
  const VitBlock& block(std::int64_t i) const { return *blocks_.at(static_cast<std::size_t>(i)); }
  Tensor pooled(const Tensor& x) const;    // (batch, dim), before the last norm
  Tensor classify(const Tensor& x) const;  // (batch, classes)
  const PatchEmbed& patch_embed() const { return patch_embed_; }
  const LayerNorm& norm() const { return norm_; }

  const VitConfig& config() const { return config_; }
  std::int64_t tokens() const { return patch_embed_.tokens() + (config_.class_token ? 1 : 0); }

  Shape input_shape() const override;
  std::int64_t num_classes() const override { return config_.num_classes; }
  std::vector<const Attention*> attention_layers() const override;
  std::int64_t attention_tokens(const Attention&) const override { return tokens(); }
  std::int64_t attention_queries(const Attention& layer) const override {
    return last_block_is_cut() && &layer == &blocks_.back()->attention() ? 1 : tokens();
  }
  std::vector<LayerSummary> layers(std::int64_t batch) const override;
  std::vector<PositionTable> position_tables() const override;

 private:
  bool last_block_is_cut() const { return config_.shortcuts && config_.pool == Pool::token; }

  VitConfig config_;
  // The order of these two and the children is the order in timm's files.
  const Tensor* cls_token_;  // null without one
  const Tensor& pos_embed_;
  PatchEmbed& patch_embed_;
  Dropout& pos_drop_;
  std::vector<VitBlock*> blocks_;
  LayerNorm& norm_;  // "norm", or "fc_norm" with mean pooling
  Linear& head_;
};

}  // namespace polygrad
