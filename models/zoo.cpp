#include "models/zoo.h"

#include "engine/error.h"
#include "engine/format.h"
#include "models/sequence/lra.h"
#include "models/vision/deit.h"
#include "models/vision/vit.h"

namespace polygrad {

namespace {

struct Preset {
  const char* name;
  const char* alias;
  bool deit;
  std::int64_t embed_dim, num_heads;
};

// All have depth 12, patches of 16, images of 224 and 1000 classes.
constexpr Preset kPresets[] = {
    {"vit_tiny", "vit_tiny_patch16_224", false, 192, 3},    {"vit_small", "vit_small_patch16_224", false, 384, 6},
    {"vit_base", "vit_base_patch16_224", false, 768, 12},   {"deit_tiny", "deit_tiny_patch16_224", true, 192, 3},
    {"deit_small", "deit_small_patch16_224", true, 384, 6}, {"deit_base", "deit_base_patch16_224", true, 768, 12},
};

struct LraPreset {
  const char* name;
  const char* alias;
  std::int64_t vocabulary, positions, length, towers, classes;
};

// All have depth 2, width 64, 2 heads and a hidden width of 128.
constexpr LraPreset kLraPresets[] = {
    {"lra_listops", "lra_listops", 32, 2048, 2048, 1, 10},         {"lra_text", "lra_text", 512, 4096, 4096, 1, 2},
    {"lra_retrieval", "lra_retrieval", 512, 4096, 4096, 2, 2},     {"lra_image", "lra_image", 512, 1024, 1024, 1, 10},
    {"lra_pathfinder", "lra_pathfinder32", 512, 1024, 1024, 1, 2},
};

const LraPreset* find_lra_preset(const std::string& name) {
  for (const LraPreset& preset : kLraPresets) {
    if (name == preset.name || name == preset.alias) return &preset;
  }
  return nullptr;
}

const Preset& find_preset(const std::string& name) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (name == preset.name || name == preset.alias) return preset;
    known += format("{}{}", known.empty() ? "" : ", ", preset.name);
  }
  for (const LraPreset& preset : kLraPresets) known += format(", {}", preset.name);
  throw ConfigError(
      format("[model.name] unknown model '{}'; expected one of {} (or timm's full name of one)", name, known));
}

Pool parse_pool(const std::string& text) {
  if (text == "token") return Pool::token;
  if (text == "mean") return Pool::mean;
  throw ConfigError(format("[model.pool] unknown pool '{}'; expected token or mean", text));
}

VitConfig vit_config(const Preset& preset, const ModelConfig& config) {
  VitConfig vit;
  vit.image_size = config.image_size.value_or(vit.image_size);
  vit.patch_size = config.patch_size.value_or(vit.patch_size);
  vit.in_channels = config.in_channels.value_or(vit.in_channels);
  vit.embed_dim = config.embed_dim.value_or(preset.embed_dim);
  vit.depth = config.depth.value_or(vit.depth);
  vit.num_heads = config.num_heads.value_or(preset.num_heads);
  vit.mlp_ratio = config.mlp_ratio.value_or(vit.mlp_ratio);
  vit.num_classes = config.num_classes.value_or(vit.num_classes);
  vit.class_token = config.class_token.value_or(vit.class_token);
  vit.pool = config.pool ? parse_pool(*config.pool) : (vit.class_token ? Pool::token : Pool::mean);
  vit.dropout = config.dropout;
  vit.drop_path = config.drop_path;
  vit.phi.clear();
  for (const std::string& phi : config.phi) vit.phi.push_back(parse_activation(phi));
  vit.scale = config.scale;
  vit.shortcuts = config.shortcuts;
  vit.path = parse_attention_path(config.path);
  vit.attention_dropout = config.attention_dropout;
  return preset.deit ? deit_config(std::move(vit)) : vit;
}

LraConfig lra_config(const LraPreset& preset, const ModelConfig& config) {
  LraConfig lra;
  lra.vocabulary = preset.vocabulary;
  lra.length = config.text_length.value_or(preset.length);
  // As many positions as the reference has, or the next power of two that suffices.
  lra.positions = preset.positions;
  while (lra.positions < lra.length && lra.positions < (std::int64_t{1} << 40)) lra.positions *= 2;
  lra.towers = preset.towers;
  lra.embed_dim = config.embed_dim.value_or(lra.embed_dim);
  lra.depth = config.depth.value_or(lra.depth);
  lra.num_heads = config.num_heads.value_or(lra.num_heads);
  lra.mlp_ratio = config.mlp_ratio.value_or(lra.mlp_ratio);
  lra.num_classes = config.num_classes.value_or(preset.classes);
  lra.dropout = config.dropout;
  lra.drop_path = config.drop_path;
  lra.phi.clear();
  for (const std::string& phi : config.phi) lra.phi.push_back(parse_activation(phi));
  lra.scale = config.scale;
  lra.path = parse_attention_path(config.path);
  lra.attention_dropout = config.attention_dropout;
  lra.mask_zero = config.mask_zero_pixels;
  lra.pool_over_padding = config.pool_over_padding;
  return lra;
}

std::unique_ptr<Model> build(const std::string& name, const ModelConfig& config) {
  if (const LraPreset* lra = find_lra_preset(name)) return std::make_unique<Lra>(lra_config(*lra, config));
  return std::make_unique<Vit>(vit_config(find_preset(name), config));
}

}  // namespace

std::unique_ptr<Model> create_model(const std::string& name, const ModelConfig& config) {
  std::unique_ptr<Model> model = build(name, config);
  if (config.initialize) {
    initialize(*model, config.seed);
  } else {
    number_streams(*model);
  }
  return model;
}

ModelConfig resolve_model_config(const std::string& name, const ModelConfig& config) {
  if (const LraPreset* preset = find_lra_preset(name)) {
    const LraConfig lra = lra_config(*preset, config);
    ModelConfig resolved = config;
    resolved.text_length = lra.length;
    resolved.embed_dim = lra.embed_dim;
    resolved.depth = lra.depth;
    resolved.num_heads = lra.num_heads;
    resolved.mlp_ratio = lra.mlp_ratio;
    resolved.num_classes = lra.num_classes;
    return resolved;
  }
  const VitConfig vit = vit_config(find_preset(name), config);
  ModelConfig resolved = config;
  resolved.image_size = vit.image_size;
  resolved.patch_size = vit.patch_size;
  resolved.in_channels = vit.in_channels;
  resolved.embed_dim = vit.embed_dim;
  resolved.depth = vit.depth;
  resolved.num_heads = vit.num_heads;
  resolved.mlp_ratio = vit.mlp_ratio;
  resolved.num_classes = vit.num_classes;
  resolved.class_token = vit.class_token;
  resolved.pool = vit.pool == Pool::token ? "token" : "mean";
  return resolved;
}

const std::vector<ModelInfo>& list_models() {
  static const std::vector<ModelInfo> models = [] {
    std::vector<ModelInfo> list;
    for (const Preset& preset : kPresets) {
      list.push_back({preset.name, preset.alias,
                      format("{}: width {}, {} heads, 12 layers, patches of 16 x 16, images of 224 x 224",
                             preset.deit ? "DeiT" : "vision transformer", preset.embed_dim, preset.num_heads)});
    }
    for (const LraPreset& preset : kLraPresets) {
      list.push_back({preset.name, preset.alias,
                      format("Long Range Arena: width 64, 2 heads, 2 layers, {} of up to {} tokens",
                             preset.towers == 1 ? "sequences" : "pairs of sequences", preset.length)});
    }
    return list;
  }();
  return models;
}

}  // namespace polygrad
