// Weights: loading a file into a model by name, and saving one. Strict: a name that is missing, unexpected or of
// another shape is an error that lists all of them, and nothing has been loaded then.
//
// Where this stands: above engine/safetensors.h. Any file whose names are timm's loads as it is; others through a
// conversion of names and tensors.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/safetensors.h"
#include "models/nn/module.h"
#include "models/position.h"

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
  // The model's position tables (Model::position_tables): a file's table of another grid is resized. A file that
  // save_weights wrote with these tables says its grid; of any other, `grid` does, or a table whose length is a square
  // number counts as square, unless it has the length of a table here that is not. Empty: a table loads like any
  // tensor.
  std::vector<PositionTable> positions;
  std::optional<Grid> grid;  // of the file's tables, where it does not say
};

struct LoadReport {
  std::size_t loaded = 0;
  std::vector<std::string> kept;     // by allow_other_head
  std::vector<std::string> resized;  // "pos_embed: 14x14 -> 16x16"
};

// Floating types are converted to the model's. Throws IoError as described above; also where the file can't be read or
// holds something else than numbers of the right kind.
LoadReport load_weights(Module& model, const std::string& path, const LoadOptions& options = {});
LoadReport load_weights(Module& model, const SafetensorsFile& file, const LoadOptions& options = {});
// The same from tensors in memory; `origin` stands in messages.
LoadReport load_state(Module& model, const NamedTensors& state, const LoadOptions& options = {},
                      const std::string& origin = "state");

// What a file of weights says of these tables: metadata for save_weights, save_safetensors.
std::map<std::string, std::string> grid_metadata(const std::vector<PositionTable>& tables);
// The grid of the table of this name, as a file's metadata say it.
std::optional<Grid> stored_grid(const std::map<std::string, std::string>& metadata, const std::string& name);

// All parameters and buffers, in the model's order.
void save_weights(const std::string& path, const Module& model,
                  const std::map<std::string, std::string>& metadata = {});

// SHA-256 over names, dtypes, shapes and bytes, in order, as 64 hexadecimal digits: equal for equal weights.
std::string fingerprint(const NamedTensors& tensors);

}  // namespace polygrad
