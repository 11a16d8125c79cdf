// inspect --model NAME.
#include <cstdio>
#include <set>

#include "apps/inspect/inspect.h"
#include "apps/training/experiment.h"
#include "engine/format.h"
#include "models/weights.h"
#include "models/zoo.h"

namespace polygrad::inspect {

namespace {

// "192x3x4x4"; "scalar" for a tensor without dimensions.
std::string sizes(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += format("{}{}", text.empty() ? "" : "x", size);
  return text.empty() ? "scalar" : text;
}

}  // namespace

void show_model(const std::string& name, const Config& given, bool tsv, const std::string& save) {
  Config config = given;
  config.set_value("model.name", JsonValue::text(name), "--model");
  refuse_unavailable(config);
  // What a data set would say, the preset says: its own image size and classes.
  const ModelConfig preset = resolve_model_config(name, {});
  Preprocessing input;
  if (preset.image_size) {
    input.channels = *preset.in_channels;
    input.height = (*preset.image_size)[0];
    input.width = (*preset.image_size)[1];
  } else {  // of tokens
    input.towers = 1;
    input.length = config.integer_or("data.text_length", *preset.text_length);
  }
  ModelConfig model_keys = model_config(config, *preset.num_classes, input);
  model_keys.initialize = !tsv || !save.empty();  // names and shapes need no numbers
  const auto model = create_model(name, model_keys);
  const NamedTensors state = model->state();
  if (!save.empty()) save_weights(save, *model);
  std::string text;
  if (tsv) {
    std::set<std::string> parameters;
    for (const auto& [path, tensor] : model->named_parameters()) parameters.insert(path);
    for (const auto& [path, tensor] : state) {
      text += format("{}\t{}\t{}\n", path, sizes(tensor.shape()), parameters.count(path) != 0 ? "param" : "buffer");
    }
  } else {
    text = summary_table(*model, 1) + "\n" + parameter_table(*model) + "\n" + attention_report(*model);
    text += format("{:.4g} GFLOP in the matrix products of a forward on one sample\n", model_flops(*model, 1) / 1e9);
    text += format("{} parameters in {} tensors, seed {}, sha256 {}\n", model->parameter_count(), state.size(),
                   config.seed("seed"), fingerprint(state));
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace polygrad::inspect
