// Lra: the small transformer of the Long Range Arena: tokens -> classes, for one sequence or for a pair of them.
//
//   tokens -> word + position embeddings
//   depth x { x += mha(norm1 x);  x += mlpblock(norm2 x) }
//   x0 = mean of norm(x) over the tokens that are there
//   one tower:  logits = head(x0)        head: Linear, ReLU, Linear
//   two towers: logits = head([x0, x1, x0 * x1, x0 - x1]), each sequence by itself through the same encoder
//
// Names, shapes, order and start of the parameters are those of the Nystromformer authors' LRA code, their spelling
// included. Padding does not change a result: what is no token is hidden from attention and left out of the mean.
// Read next: ../nn/attention.h, ../zoo.h.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "models/nn/embedding.h"
#include "models/nn/mlp.h"

namespace polygrad {

struct LraConfig {
  std::int64_t vocabulary = 512;  // rows of the word table
  std::int64_t positions = 4096;  // rows of the position table: no sequence may be longer
  std::int64_t length = 4096;     // what sequences are cut to; n of sqrt_n; <= positions
  std::int64_t towers = 1;        // 1 or 2
  std::int64_t embed_dim = 64;
  std::int64_t depth = 2;
  std::int64_t num_heads = 2;
  double mlp_ratio = 2;
  std::int64_t num_classes = 2;
  double dropout = 0;    // of the embeddings, after attention's projection, and twice in the MLP
  double drop_path = 0;  // of the last block; 0 at the first
  std::vector<Activation> phi = {Activation::softmax()};  // one for all layers, or one for each
  std::string scale = "auto";                             // as in resolve_divisor; n is `length`
  AttentionPath path = AttentionPath::automatic;
  double attention_dropout = 0;
  // Two habits of the reference's code. Id 0 is no token either, although pixels of value 0 have it; the mean divides
  // by `length` whatever the sequence's own.
  bool mask_zero = false;
  bool pool_over_padding = false;
  double norm_eps = 1e-5;
};

// What the host makes of a batch of token ids.
struct TokenRows {
  Tensor ids;      // i64 (rows, length); 0 where there is no token
  TokenMask mask;  // undefined where every token is there
  Tensor shares;   // f32 (rows, length, 1): each token's share of its row's mean
};

class LraBlock : public Module {
 public:
  LraBlock(const LraConfig& config, const AttentionConfig& attention, double drop_path);
  // (rows, tokens, dim) -> the same shape.
  Tensor forward(const Tensor& x, const ForwardContext& context, const TokenMask& mask) const;
  const Attention& attention() const { return mha_; }
  std::int64_t hidden() const { return mlp_.hidden(); }

 private:
  LayerNorm& norm1_;
  Attention& mha_;
  DropPath& drop_path1_;
  LayerNorm& norm2_;
  Mlp& mlp_;
  DropPath& drop_path2_;
};

class LraEmbeddings : public Module {
 public:
  explicit LraEmbeddings(const LraConfig& config);
  Tensor forward(const Tensor& ids, const ForwardContext& context) const;  // (rows, length) -> (rows, length, dim)

 private:
  Embedding &word_, &position_;
  Dropout& dropout_;
};

class LraEncoder : public Module {
 public:
  explicit LraEncoder(const LraConfig& config);
  // (rows, length, dim), normed: what is no token holds finite numbers that nobody should read.
  Tensor forward(const TokenRows& rows, const ForwardContext& context = {}) const;
  const std::vector<LraBlock*>& blocks() const { return blocks_; }
  const LayerNorm& norm() const { return norm_; }

 private:
  LraEmbeddings& embeddings_;
  std::vector<LraBlock*> blocks_;
  LayerNorm& norm_;
};

// Linear, ReLU, Linear.
class LraHead : public Module {
 public:
  LraHead(std::int64_t in, std::int64_t hidden, std::int64_t classes);
  Tensor forward(const Tensor& x) const;

 private:
  Linear &first_, &second_;
};

class Lra : public Model {
 public:
  // Throws ConfigError, naming key and values, for what can't be built. Parameters are not yet filled: initialize().
  explicit Lra(const LraConfig& config);

  // tokens i64 (batch, towers, length), negative where there is none -> logits (batch, classes). A row without any
  // token is represented by zeros. Throws ShapeError for another rank or more tokens than positions, IndexError for ids
  // outside the vocabulary.
  Tensor forward(const Tensor& tokens, const ForwardContext& context = {}) const override;

  // The stages of forward. prepare: (rows, length) of one or more towers; encode -> (rows, dim): the mean.
  TokenRows prepare(const Tensor& tokens) const;
  Tensor encode(const TokenRows& rows, const ForwardContext& context = {}) const;
  const LraEncoder& encoder() const { return encoder_; }

  const LraConfig& config() const { return config_; }
  Shape input_shape() const override { return {config_.towers, config_.length}; }
  std::int64_t num_classes() const override { return config_.num_classes; }
  std::vector<const Attention*> attention_layers() const override;
  std::int64_t attention_tokens(const Attention&) const override { return config_.length; }
  std::vector<LayerSummary> layers(std::int64_t batch) const override;
  std::string head_path() const override { return "seq_classifer"; }

 private:
  LraConfig config_;
  LraEncoder& encoder_;
  LraHead& head_;
};

}  // namespace polygrad
