// Model: a classifier. What the trainer, the probes and the programs need of one, whatever its architecture.
//
// Where this stands: between nn/ (layers) and vision/ (architectures). create_model (zoo.h) makes one by name.
// Read next: vision/vit.h, summary.h.
#pragma once

#include <string>
#include <vector>

#include "models/nn/attention.h"
#include "models/nn/module.h"
#include "models/position.h"
#include "models/summary.h"

namespace polygrad {

class Model : public Module {
 public:
  // images (batch, channels, height, width) f32 -> logits (batch, classes). Const, and in evaluation thread-safe.
  virtual Tensor forward(const Tensor& images, const ForwardContext& context = {}) const = 0;

  virtual Shape input_shape() const = 0;  // (channels, height, width)
  virtual std::int64_t num_classes() const = 0;
  // In the order of a forward; each knows its path, phi, divisor and layer number.
  virtual std::vector<const Attention*> attention_layers() const = 0;
  // Tokens of one attention of that layer, the class token included.
  virtual std::int64_t attention_tokens(const Attention& layer) const = 0;
  // Of those, the tokens whose result is computed: fewer where a forward leaves out what nobody reads.
  virtual std::int64_t attention_queries(const Attention& layer) const { return attention_tokens(layer); }
  // Learned positions of grids, which another image size changes.
  virtual std::vector<PositionTable> position_tables() const { return {}; }
  // Where the classifier lies among the parameters: what another number of classes changes.
  virtual std::string head_path() const { return "head"; }
  // Every layer of a forward on `batch` images, in order.
  virtual std::vector<LayerSummary> layers(std::int64_t batch) const = 0;
};

}  // namespace polygrad
