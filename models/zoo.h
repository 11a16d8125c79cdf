// The zoo: models by name.
//
// Where this stands: the top of models/; programs and applications start here.
//
//   ModelConfig config;
//   config.num_classes = 10;
//   config.phi = {"x3"};
//   std::unique_ptr<Model> model = create_model("vit_tiny", config);
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace polygrad {

// What may be said about a model beside its name. An absent field has the preset's value. The comment names the
// configuration key; errors name it too.
struct ModelConfig {
  std::optional<std::array<std::int64_t, 2>> image_size;  // model.image_size: {height, width}
  std::optional<std::array<std::int64_t, 2>> patch_size;  // model.patch_size
  std::optional<std::int64_t> in_channels;                // model.in_channels
  std::optional<std::int64_t> embed_dim;                  // model.embed_dim
  std::optional<std::int64_t> depth;                      // model.depth
  std::optional<std::int64_t> num_heads;                  // model.num_heads
  std::optional<double> mlp_ratio;                        // model.mlp_ratio
  std::optional<std::int64_t> num_classes;                // model.num_classes
  std::optional<bool> class_token;                        // model.class_token
  std::optional<std::string> pool;                        // model.pool: token, mean
  double dropout = 0;                                     // model.dropout
  double drop_path = 0;                                   // model.drop_path
  std::vector<std::string> phi = {"softmax"};             // attention.phi: one, or one for each layer
  std::string scale = "auto";                             // attention.scale: a number, sqrt_n, n, auto
  std::string path = "auto";                              // attention.path: auto, tiled, linear, materialised
  double attention_dropout = 0;                           // attention.dropout
  std::optional<std::int64_t> text_length;                // data.text_length: tokens of an LRA sequence
  bool mask_zero_pixels = false;                          // data.mask_zero_pixels: LRA
  bool pool_over_padding = false;                         // model.pool_over_padding: LRA
  bool shortcuts = true;                                  // leave out what no result depends on (VitConfig)
  std::uint64_t seed = 0;                                 // of the parameters
  bool initialize = true;                                 // false: they stay NaN, for a caller who loads them next
};

// A model with fresh parameters. Throws ConfigError for an unknown name (it lists the known ones), or for values that
// can't be built (it names key and values).
std::unique_ptr<Model> create_model(const std::string& name, const ModelConfig& config = {});
// `config` with every absent field set to what the preset says: what a run records.
ModelConfig resolve_model_config(const std::string& name, const ModelConfig& config);

struct ModelInfo {
  std::string name;   // "vit_tiny"
  std::string alias;  // "vit_tiny_patch16_224": timm's name, accepted as well
  std::string about;  // one line
};
const std::vector<ModelInfo>& list_models();

}  // namespace polygrad
