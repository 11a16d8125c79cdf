// Weights: loading a file into a model by name, and saving one. Strict: a name that is missing, unexpected or of
// another shape is an error that lists all of them, and nothing has been loaded then.
//
// Where this stands: above engine/safetensors.h. Any file whose names are timm's loads as it is; others through a
// conversion of names and tensors.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/safetensors.h"
#include "models/nn/module.h"

namespace polygrad {

// A tensor of a file that has not been read yet.
struct WeightSource {
  std::string name;
  Shape shape;
  std::function<Tensor()> load;
};
// Turns the tensors of a foreign file into a model's: rename (change name), drop (leave out), combine (a new entry
// whose load() puts others together).
using WeightConversion = std::function<std::vector<WeightSource>(std::vector<WeightSource>)>;

struct LoadOptions {
  // A prefix that every name of the file has, such as "module."; taken off. A name without it is then unexpected.
  std::string strip_prefix;
  WeightConversion convert;  // after strip_prefix
  // Allows the classifier to differ: parameters of this path or below it whose shape in the file is another, or which
  // the file lacks, keep their values. Everything else stays strict. "": no.
  std::string allow_other_head;
};

struct LoadReport {
  std::size_t loaded = 0;
  std::vector<std::string> kept;  // by allow_other_head
};

// Floating types are converted to the model's. Throws IoError as described above; also where the file can't be read or
// holds something else than numbers of the right kind.
LoadReport load_weights(Module& model, const std::string& path, const LoadOptions& options = {});
LoadReport load_weights(Module& model, const SafetensorsFile& file, const LoadOptions& options = {});
// The same from tensors in memory; `origin` stands in messages.
LoadReport load_state(Module& model, const NamedTensors& state, const LoadOptions& options = {},
                      const std::string& origin = "state");

// All parameters and buffers, in the model's order.
void save_weights(const std::string& path, const Module& model,
                  const std::map<std::string, std::string>& metadata = {});

// SHA-256 over names, dtypes, shapes and bytes, in order, as 64 hexadecimal digits: equal for equal weights.
std::string fingerprint(const NamedTensors& tensors);

}  // namespace polygrad
