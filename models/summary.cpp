#include "models/summary.h"

#include "engine/format.h"
#include "models/model.h"

namespace polygrad {

double model_flops(const Model& model, std::int64_t batch) {
  double flops = 0;
  for (const LayerSummary& layer : model.layers(batch)) flops += 2 * static_cast<double>(layer.macs);
  return flops;
}

std::string summary_table(const Model& model, std::int64_t batch) {
  std::string text = format("{:<28} {:<22} {:>12} {:>14}\n", "layer", "output", "parameters", "multiply-adds");
  std::int64_t macs = 0;
  for (const LayerSummary& layer : model.layers(batch)) {
    text += format("{:<28} {:<22} {:>12} {:>14}\n", layer.path, to_string(layer.output), layer.parameters, layer.macs);
    macs += layer.macs;
  }
  return text + format("{:<28} {:<22} {:>12} {:>14}\n", "total", "", model.parameter_count(), macs);
}

std::string attention_report(const Model& model) {
  struct Line {
    int first, last;
    std::string what;
  };
  std::vector<Line> lines;
  for (const Attention* layer : model.attention_layers()) {
    const AttentionConfig& config = layer->config();
    const std::int64_t tokens = model.attention_tokens(*layer);
    const AttentionChoice choice = layer->choose(tokens);
    std::string what =
        format("{} heads of {}, {} tokens, phi {}", layer->heads(), layer->head_dim(), tokens, to_string(config.phi));
    if (!config.phi.is_softmax()) what += format(", divisor {:g}", config.divisor);
    what += format(", path {} ({})", to_string(choice.path), choice.why);
    if (!lines.empty() && lines.back().what == what) {
      lines.back().last = config.layer;
    } else {
      lines.push_back({config.layer, config.layer, std::move(what)});
    }
  }
  std::string text;
  for (const Line& line : lines) {
    text += line.first == line.last ? format("attention layer {}: {}\n", line.first, line.what)
                                    : format("attention layers {}-{}: {}\n", line.first, line.last, line.what);
  }
  return text;
}

}  // namespace polygrad
