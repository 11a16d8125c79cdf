#include "models/summary.h"

#include <algorithm>
#include <cmath>

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

std::string parameter_kind(const std::string& path) {
  std::string kind;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) part = "*";
    kind += (kind.empty() ? "" : ".") + part;
    begin = end + 1;
  }
  return kind;
}

std::string parameter_table(const Module& model) {
  struct Row {
    std::string kind;
    std::int64_t tensors = 0, elements = 0;
    double sum = 0, squares = 0, smallest = INFINITY, largest = -INFINITY;
  };
  std::vector<Row> rows;
  for (const auto& [path, tensor] : model.named_parameters()) {
    const std::string kind = parameter_kind(path);
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& other) { return other.kind == kind; });
    if (row == rows.end()) {
      rows.push_back({kind});
      row = rows.end() - 1;
    }
    ++row->tensors;
    for (const double value : tensor.detach().to(DType::f64).to_vector<double>()) {
      ++row->elements;
      row->sum += value;
      row->squares += value * value;
      row->smallest = std::min(row->smallest, value);
      row->largest = std::max(row->largest, value);
    }
  }
  std::string text = format("{:<28} {:>7} {:>10} {:>12} {:>12} {:>12} {:>12}\n", "parameter", "tensors", "elements",
                            "mean", "deviation", "smallest", "largest");
  for (const Row& row : rows) {
    const double count = static_cast<double>(std::max<std::int64_t>(row.elements, 1)), mean = row.sum / count;
    const double deviation = std::sqrt(std::max(row.squares / count - mean * mean, 0.0));
    text += format("{:<28} {:>7} {:>10} {:>12.4g} {:>12.4g} {:>12.4g} {:>12.4g}\n", row.kind, row.tensors, row.elements,
                   mean, deviation, row.smallest, row.largest);
  }
  return text;
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
    const AttentionChoice choice = layer->choose(model.attention_queries(*layer), tokens);
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
