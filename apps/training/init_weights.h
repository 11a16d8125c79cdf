// init_weights: a new run that starts from trained weights: of another run, or of any file with timm's names.
//
// Where this stands: above models/weights.h, below trainer.h. Weights alone: no optimizer, schedule or data position
// (that is resume.h). Images may be of another size: positions are resized from the grid that the file states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/model.h"

namespace polygrad {

struct InitOptions {
  // A classifier of another shape, or none, in the file is left out, and the model's stays fresh.
  bool allow_other_head = false;
  // Rows and columns of the positions in the file, where that does not say.
  std::optional<Grid> grid = {};
};

// Loads `path` into the model: a file of weights, a checkpoint, or a run folder (its newest checkpoint). Says what was
// loaded, resized and left fresh, in one line; also where a checkpoint's classifier is of other classes than these.
// Throws IoError naming file and tensors: they differ from the model's, or one holds a NaN or infinity, or a
// checkpoint's file is damaged. The model is then not to be used.
std::string init_weights(Model& model, const std::string& path, const InitOptions& options,
                         const std::vector<std::string>& class_names);

// Throws IoError, naming file and tensor, where a weight that came from it is no finite number.
void check_finite_weights(const Module& model, const std::string& path);

}  // namespace polygrad
